"""Survival on the command line: from a clinical table to a report and a curve."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sacmil import Bag, write_bag
from sacmil.card import find_model_folders, read_card
from sacmil.results import read_predictions
from sacmil.tasks import Survival, get_model_task

pytestmark = pytest.mark.filterwarnings("default::sacmil.errors.CohortWarning")
PATIENTS = 48
QUICK = ("--models", "mean_pool,abmil", "--folds", 2, "-o", "epochs=2", "-o", "lr=1e-2")
FEW = ("--draws", 20)
every_loss = pytest.mark.parametrize("loss", ["discrete", "cox"])


def write_cohort(folder: Path, header: tuple[str, str], *, days: int = 1, seed: int = 0) -> Path:
    """A table and bags whose first feature is the log hazard; one patient has no follow-up."""
    random = np.random.default_rng(seed)
    hazard = random.standard_normal(PATIENTS)
    death = random.exponential(20 * np.exp(-hazard))
    seen = random.uniform(5, 60, PATIENTS)
    rows = []
    for number in range(PATIENTS):
        time = 0 if number == 0 else min(death[number], seen[number])
        features = 0.3 * random.standard_normal((8, 6))
        features[:, 0] += hazard[number]
        coords = np.stack(np.divmod(random.permutation(36)[:8], 6), 1) * 256
        name = f"s{number}"
        bag = Bag(name, features.astype(np.float32), coords, 256, 0.5)
        write_bag(folder / "bags" / f"{name}.h5", bag)
        status = "1:DECEASED" if death[number] <= seen[number] else "0:LIVING"
        rows.append((name, f"p{number}", f"{time * days:.4f}", status))
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("slide_id", "patient_id", *header), *rows])
    return folder


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cohort; in its folder "other" one with columns of other names, in "days" one in days."""
    folder = tmp_path_factory.mktemp("survival")
    write_cohort(folder, ("OS_MONTHS", "OS_STATUS"))
    write_cohort(folder / "other", ("months_seen", "vital"), seed=1)
    write_cohort(folder / "days", ("OS_DAYS", "vital"), seed=1, days=30)
    return folder


@pytest.fixture(scope="module")
def finished() -> dict[str, Any]:
    """How the command of each run ended, once it has."""
    return {}


@pytest.fixture
def run_of(sacmil: Callable, material: Path, finished: dict[str, Any]) -> Callable[[str], Path]:
    """Returns the folder of a cross-validation with a loss."""

    def get(loss: str) -> Path:
        if loss not in finished:
            words = (material / "table.csv", "--bags", material / "bags", "--out", material / loss)
            done = sacmil("crossval", *words, "--task", "survival", "--loss", loss, *QUICK)
            finished[loss] = done
        assert finished[loss].code == 0, finished[loss].err
        return material / loss

    return get


def read_error(done: Any) -> str:
    """The one sentence that a command ended with."""
    assert done.code != 0
    assert "Traceback" not in done.err
    assert "fault of sacmil" not in done.err
    (message,) = (line for line in done.err.splitlines() if line.startswith("Error: "))
    return str(message)


def test_a_run_continued_with_another_loss_names_the_loss_only(
    run_of: Callable[[str], Path], sacmil: Callable, material: Path
) -> None:
    words = (material / "table.csv", "--bags", material / "bags", "--out", run_of("discrete"))
    message = read_error(sacmil("crossval", *words, "--task", "survival", "--loss", "cox", *QUICK))
    assert "(--loss was discrete, now cox)" in message


@every_loss
def test_what_was_read_is_printed_and_a_run_is_made(
    run_of: Callable[[str], Path], finished: dict[str, Any], material: Path, loss: str
) -> None:
    run = run_of(loss)
    statuses = [row.split(",")[3] for row in (material / "table.csv").read_text().splitlines()[2:]]
    events = sum(status.startswith("1") for status in statuses)
    text = f"time = OS_MONTHS in months, event = OS_STATUS: {events} events, "
    assert f"{text}{PATIENTS - 1 - events} censored" in finished[loss].err
    assert "1 row with a time of 0 is left out: line 2" in finished[loss].err
    for title in ("c-index", "Uno's c", "IBS", "IBS of Kaplan-Meier"):
        assert title in finished[loss].out
    found = read_predictions(run)
    assert set(found.split.tolist()) >= {"train", "test"}
    for folder in find_model_folders(run / "abmil"):
        task = get_model_task(read_card(folder))
        assert isinstance(task, Survival)
        assert task.loss_name == loss
        assert len(task.learned.risk_quantiles) == 101


def test_folds_are_printed_with_their_events(
    sacmil: Callable, material: Path, tmp_path: Path
) -> None:
    words = ("--task", "survival", "--folds", 3, "--out", tmp_path / "splits")
    done = sacmil("split", material / "table.csv", *words)
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()[2:]]
    assert lines[0] == ["fold", "set", "all", "events"]
    tested = [line[3] for line in lines[1:] if line[1:2] == ["test"]]
    assert len(tested) == 3
    patients = [int(cell.split("/")[0]) for cell in tested]
    assert max(patients) - min(patients) <= 1, "stratified"


def write_events(folder: Path, source: Path, events: int) -> Path:
    """A table in which only the first patients have an event."""
    header, *rows = [line.split(",") for line in source.read_text().splitlines()]
    texts = [[*row[:3], str(int(number < events))] for number, row in enumerate(rows[1:13])]
    path = folder / "few.csv"
    path.write_text("\n".join(map(",".join, [header, *texts])))
    return path


@pytest.mark.parametrize(
    ("loss", "events", "problem"),
    [
        ("discrete", 4, "for 4 bins of time; expected at least one for each"),
        ("cox", 1, "the training set has no event; expected one at least: use fewer folds"),
    ],
)
def test_too_few_events_for_a_fold_are_one_error_before_training(
    sacmil: Callable, material: Path, tmp_path: Path, loss: str, events: int, problem: str
) -> None:
    table = write_events(tmp_path, material / "table.csv", events)
    words = (table, "--task", "survival", "--loss", loss, "--folds", 2)
    done = sacmil("split", *words, "--out", tmp_path / "splits")
    assert done.code == 0, done.err
    assert "Warning: fold 1: the training set has" in done.err
    assert problem in done.err
    of_bags, out = ("--bags", material / "bags"), tmp_path / "run"
    for command in (("crossval", "--models", "mean_pool"), ("train", "--fold", 1)):
        options = (
            *of_bags,
            "--splits",
            tmp_path / "splits",
            "--out",
            out,
            "-o",
            "monitor=val_loss",
        )
        failed = sacmil(*command, *words[:-2], *options)
        assert "Error: splits: " in read_error(failed)
        assert problem in failed.err
        assert "retry" not in failed.err
        assert not out.exists()


def test_events_that_only_validation_has_are_a_warning_that_says_so(
    sacmil: Callable, material: Path, tmp_path: Path
) -> None:
    table = write_events(tmp_path, material / "table.csv", 5)
    names = [line.split(",")[0] for line in table.read_text().splitlines()[1:]]
    sets = (names[:3] + names[5:8], [*names[3:4], *names[8:10]], [*names[4:5], *names[10:]])
    rows = itertools.zip_longest(*sets, fillvalue="")
    text = "\n".join(["train,val,test", *map(",".join, rows)])
    (tmp_path / "splits_0.csv").write_text(text)
    done = sacmil("split", table, "--task", "survival", "--check", tmp_path / "splits_0.csv")
    assert done.code == 0, done.err
    assert "fold 0: without validation, the training set has 3 events for 4 bins" in done.err


@every_loss
def test_a_report_and_a_comparison_are_written(
    sacmil: Callable, run_of: Callable[[str], Path], tmp_path: Path, loss: str
) -> None:
    run, out = run_of(loss), tmp_path / "report"
    done = sacmil("evaluate", run, "--out", out, *FEW)
    assert done.code == 0, done.err
    page = (out / "report.html").read_text()
    assert "High risk: above the median risk of the training patients" in page
    assert {"kaplan_meier.png", "auc_over_time.png", "survival_calibration.png"} <= {
        file.name for file in (out / "plots").iterdir()
    }
    with (out / "risk_by_patient.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * (PATIENTS - 1)
    assert {row["group"] for row in rows} == {"low", "high"}
    compared = sacmil("compare", run, *FEW)
    assert compared.code == 0, compared.err
    assert "c-index" in compared.out


@every_loss
def test_another_cohort_is_evaluated_with_the_times_of_the_model(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, loss: str
) -> None:
    model, other = run_of(loss) / "mean_pool", material / "other"
    words = ("evaluate", model, "--table", other / "table.csv", "--bags", other / "bags", *FEW)
    columns = ("--time", "months_seen", "--event", "vital")
    for task in ((), ("--task", "survival")):
        done = sacmil(*words, *columns, *task)
        assert done.code == 0, done.err
        assert "c-index" in done.out
    wrong = sacmil(*words, *columns, "--horizons", "7,21")
    assert "take --horizons of these times" in read_error(wrong)


def test_usual_columns_of_another_cohort_are_found_and_others_requested(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, tmp_path: Path
) -> None:
    model, other = run_of("discrete") / "mean_pool", material / "other"
    text = (other / "table.csv").read_text()
    table = tmp_path / "table.csv"
    words = ("evaluate", model, "--table", table, "--bags", other / "bags", *FEW)
    table.write_text(text.replace("months_seen", "DSS_MONTHS").replace("vital", "DSS_STATUS"))
    done = sacmil(*words)
    assert done.code == 0, done.err
    assert "time = DSS_MONTHS in months, event = DSS_STATUS: " in done.err
    table.write_text(text)
    assert "name them by --time and --event" in read_error(sacmil(*words))
    trained = sacmil(*words, "--loss", "cox")
    assert trained.code == 2
    assert "--loss is for training; the model has its own" in read_error(trained)


def test_runs_with_other_horizons_are_not_compared(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, tmp_path: Path
) -> None:
    words = (material / "table.csv", "--bags", material / "bags", "--task", "survival", *QUICK)
    out = ("--out", tmp_path / "run")
    assert sacmil("crossval", *words, *out, "--horizons", "7,21").code == 0
    message = read_error(sacmil("compare", run_of("discrete"), tmp_path / "run", *FEW))
    assert "survival of time, event cannot be joined: only some have the columns " in message
    assert "s_7" in message
    assert "expected runs with the same settings of the task, such as horizons" in message
    again = read_error(sacmil("crossval", *words, *out, "--horizons", "9,21"))
    assert "--horizons was [7.0, 21.0], now [9.0, 21.0]" in again
    added = read_error(sacmil("crossval", *words, *out, "--models", "max_pool"))
    assert "cannot be joined: only some have the columns s_7" in added
    assert "to keep both, choose another --out" in added
    assert not (tmp_path / "run" / "max_pool").exists()


def test_times_in_another_unit_than_the_models_are_not_evaluated(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path
) -> None:
    model, other = run_of("cox") / "mean_pool", material / "days"
    words = ("evaluate", model, "--table", other / "table.csv", "--bags", other / "bags", *FEW)
    columns = ("--time", "OS_DAYS", "--event", "vital")
    named = read_error(sacmil(*words, *columns))
    assert "OS_DAYS is in days by its name, but the unit is months" in named
    stated = read_error(sacmil(*words, *columns, "--time-unit", "days"))
    assert "its times are in months, those of the table in days" in stated


@every_loss
def test_a_new_slide_has_a_group_and_a_curve(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, tmp_path: Path, loss: str
) -> None:
    words = (material / "bags/s5.h5", "--model", run_of(loss) / "abmil", "--out", tmp_path / "new")
    done = sacmil("predict", *words, "--report")
    assert done.code == 0, done.err
    assert "risk, above" in done.out
    with (tmp_path / "new/predictions.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    curve = [float(value) for name, value in row.items() if name.startswith("s_")]
    assert curve == sorted(curve, reverse=True)
    assert "polyline" in (tmp_path / "new/reports/s5.html").read_text()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--time", "nothing"), "no column 'nothing'"),
        (("--event", "OS_MONTHS"), "no column of the time beside OS_MONTHS has a usual name"),
        (("--time", "OS_MONTHS", "--event", "OS_MONTHS"), "are both 'OS_MONTHS'"),
        (("--horizons", "999"), "--horizons has 999 months, but the longest follow-up"),
        (("--horizons", "0"), "--horizons"),
        (("--time-unit", "days"), "OS_MONTHS is in months by its name, but the unit is days"),
        (("--loss", "coxx"), "coxx"),
        (("--label-column", "OS_STATUS"), "leave it out"),
    ],
)
def test_a_wrong_call_is_one_sentence(
    sacmil: Callable, material: Path, tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    done = sacmil(
        "split", material / "table.csv", "--task", "survival", *words, "--out", tmp_path / "out"
    )
    assert problem in read_error(done)
    assert not (tmp_path / "out").exists()
