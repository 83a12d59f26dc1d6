"""``sacmil evaluate``."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from localised import localised
from predicted import predicted

from sacmil import create_model, save_model, write_bag
from sacmil.results import (
    LOCALIZATION_FILE,
    read_predictions,
    write_localization,
    write_predictions,
)

FEW = ("--draws", 50)


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report without its pictures, where those are not the point."""
    monkeypatch.setattr("sacmil.evaluation.report.Report.plots", {})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two models."""
    write_predictions(tmp_path / "run" / "predictions.csv", predicted())
    return tmp_path / "run"


# --- runs ----------------------------------------------------------------------------------------


def test_the_summary_of_a_run_is_printed(sacmil: Callable, run: Path) -> None:
    done = sacmil("evaluate", run, *FEW)
    assert (done.code, done.err) == (0, "")
    header, _, first, second, _, caption = done.out.splitlines()
    assert header.split() == ["model", "Accuracy", "AUC", "F1"]
    assert (first.split()[0], second.split()[0]) == ("abmil", "sac_mil")
    assert caption.startswith("Unit: the patient (60 patients, 60 slides); 3 folds, 1 seed; mean ±")
    assert caption.endswith(f"data: {run}.")
    assert list(run.iterdir()) == [run / "predictions.csv"]


def test_metrics_and_style_are_chosen(sacmil: Callable, run: Path) -> None:
    done = sacmil("evaluate", run, "--metrics", "kappa, brier", "--percent", "--spread", "std")
    header, _, first, *_ = done.out.splitlines()
    assert header.split() == ["model", "Kappa", "Brier", "score"]
    name, mean, sign, std, *_ = first.split()
    assert (name, sign) == ("abmil", "±")
    assert float(mean) > 1
    assert float(std) > 0
    assert "[" not in first


def test_csv_holds_what_is_computed(sacmil: Callable, run: Path) -> None:
    from sacmil.evaluation.summary import summarize

    done = sacmil("evaluate", run, "--metrics", "all", "--format", "csv", *FEW)
    figures = summarize(predicted(), metrics=["log_loss"], draws=50)
    rows = {(row["model"], row["metric"]): row for row in csv.DictReader(io.StringIO(done.out))}
    for model, found in figures.items():
        row = rows[model, "log_loss"]
        for name in ("mean", "std", "low", "high"):
            assert float(row[name]) == getattr(found["log_loss"], name)


@pytest.mark.usefixtures("no_plots")
def test_localisation_of_a_run_is_printed_and_reported(sacmil: Callable, run: Path) -> None:
    strengths = {"abmil": 0.7, "sac_mil": 0.9}
    write_localization(run / LOCALIZATION_FILE, localised(strengths, patients=12))
    done = sacmil("evaluate", run, *FEW, "--out", run)
    assert done.code == 0, done.err
    header, _, first, second, _, caption = done.out.splitlines()[-6:]
    assert header.split() == [
        *("model", "Localisation", "AUC", "Localisation", "AP"),
        *("AP", "by", "chance", "patients", "slides"),
    ]
    assert first.startswith("abmil    0.682 [")
    assert second.endswith("0.100         12        12")
    assert caption.startswith("Localisation (out of fold): ")
    assert "Localisation (out of fold): " in (run / "report.html").read_text()
    assert (run / "localisation.csv").read_text().startswith("model,metric,mean,")
    assert sacmil("evaluate", run, *FEW).out == done.out, "a report leaves the run as it was"


def test_without_intervals_no_footnote_explains_them(sacmil: Callable, run: Path) -> None:
    few = predicted(patients=4, folds=1)
    write_predictions(run / "predictions.csv", few)
    done = sacmil("evaluate", run, *FEW)
    assert "[" not in done.out.splitlines()[2]
    assert "% interval" not in done.out
    assert "% interval" not in sacmil("compare", run, *FEW).out


@pytest.mark.usefixtures("no_plots")
def test_a_report_of_runs_on_different_patients_compares_nothing(
    sacmil: Callable, run: Path, tmp_path: Path
) -> None:
    write_predictions(tmp_path / "other" / "predictions.csv", predicted(("x",), patients=30))
    done = sacmil("evaluate", run, tmp_path / "other", "--out", tmp_path / "out", *FEW)
    assert done.code == 0
    assert "Warning: models are not compared: " in done.err
    assert "Who is better" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "auc,acuracy"], "did you mean 'accuracy'"),
        (["--metrics", "localisation_auc"], "printed whenever bags have instance labels"),
        (["--device", "cpu"], "--device needs a cohort; add --table"),
        (["--bags", "x", "--drop-missing"], "--drop-missing needs a cohort; add --table"),
        (["--label-column", "x"], "--label-column needs a cohort; add --table"),
        (["--table", "x"], "add --bags"),
        (["--spread", "range"], "--spread"),
    ],
)
def test_a_wrong_call_is_reported(
    sacmil: Callable, run: Path, arguments: list[str], message: str
) -> None:
    done = sacmil("evaluate", run, *arguments)
    assert done.code == 2
    assert message in done.err


def test_asking_for_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['sacmil', 'evaluate', '--help']\n"
        "from sacmil.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert not {'numpy', 'h5py', 'torch', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL)
    assert done.returncode == 0


# --- models on another cohort --------------------------------------------------------------------


@pytest.fixture
def there(tmp_path: Path, make_bag: Callable) -> Path:
    """A folder with a model, and eight labelled bags: ``table.csv``, ``bags``, ``model``."""
    lines = ["slide_id,patient_id,label"]
    for number in range(8):
        bag = replace(make_bag(12, seed=number), slide_id=f"s{number}")
        write_bag(tmp_path / "bags" / f"s{number}.h5", replace(bag, labels=np.arange(12) % 2))
        lines.append(f"s{number},p{number},{'tumour' if number % 2 else 'normal'}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    model = create_model("abmil", in_dim=16, num_classes=2)
    save_model(tmp_path / "model", model, classes=("normal", "tumour"))
    return tmp_path


@pytest.fixture
def evaluate(sacmil: Callable, there: Path) -> Callable:
    """Runs ``sacmil evaluate`` on that folder."""

    def run(*arguments: object) -> tuple[int, str, str]:
        cohort = ("--table", there / "table.csv", "--bags", there / "bags")
        return sacmil("evaluate", there / "model", *cohort, *FEW, *arguments)

    return run


def test_a_model_is_tested_on_another_cohort(
    evaluate: Callable, sacmil: Callable, there: Path
) -> None:
    done = evaluate("--out", there / "out")
    assert done.code == 0, done.err
    assert "Unit: the patient (8 patients, 8 slides)" in done.out
    assert "Localisation AUC" in done.out
    found = read_predictions(there / "out")
    assert found.slide_id.tolist() == [f"s{i}" for i in range(8)]
    assert "Localisation" in (there / "out" / "report.html").read_text()
    assert (there / "out" / "localisation.csv").read_text().startswith("model,metric,mean,")
    again = sacmil("evaluate", there / "out", *FEW)  # its predictions are a run
    assert again.out.splitlines()[:3] == done.out.splitlines()[:3]
    assert again.out.splitlines()[-5:] == done.out.splitlines()[-5:], "so is its localisation"


def test_without_out_nothing_is_written(evaluate: Callable, there: Path) -> None:
    before = sorted(there.rglob("*"))
    assert evaluate().code == 0
    assert sorted(there.rglob("*")) == before


@pytest.mark.usefixtures("no_plots")
def test_a_bad_bag_is_reported_and_the_code_is_one(evaluate: Callable, there: Path) -> None:
    bad = there / "bags" / "s3.h5"
    bad.write_bytes(b"?")
    done = evaluate("--out", there / "out")
    assert done.code == 1
    lines = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert str(bad) in lines[0]
    assert "Unit: the patient (7 patients, 7 slides)" in done.out
    page = (there / "out" / "report.html").read_text()
    assert "1 slide could not be predicted by every model." in page


def test_when_every_bag_fails_the_reason_is_printed_once(evaluate: Callable, there: Path) -> None:
    save = create_model("abmil", in_dim=5, num_classes=2)
    save_model(there / "model", save, classes=("normal", "tumour"))
    done = evaluate()
    assert done.code == 1
    (line,) = (line for line in done.err.splitlines() if line.startswith("Error: "))
    start = "Error: 8 slides failed for the same reason (s0, s1, s2, …); the first: abmil: s0: "
    assert line.startswith(start)
    assert "fault of sacmil" not in done.err


@pytest.mark.filterwarnings("ignore::sacmil.errors.CohortWarning")
def test_missing_bags_are_listed_or_left_out(evaluate: Callable, there: Path) -> None:
    (there / "bags" / "s3.h5").unlink()
    (there / "bags" / "s4.h5").unlink()
    done = evaluate()
    assert done.code == 1
    assert "s3: has no bag" in done.err
    assert "s4: has no bag" in done.err
    done = evaluate("--drop-missing")
    assert done.code == 0
    assert "(6 patients, 6 slides)" in done.out


def test_columns_of_the_table_are_named(evaluate: Callable, there: Path) -> None:
    table = there / "table.csv"
    table.write_text(table.read_text().replace("label", "finding"))
    assert evaluate().code == 1
    assert evaluate("--label-column", "finding").code == 0


@pytest.mark.filterwarnings("default")
def test_a_cohort_of_one_class_has_an_accuracy_and_no_auc(evaluate: Callable, there: Path) -> None:
    table = there / "table.csv"
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if "normal" not in line))
    done = evaluate("--format", "csv", "--metrics", "accuracy,auc")
    assert done.code == 0, done.err
    assert "no slide of normal; AUC is not defined" in done.err
    rows = csv.DictReader(io.StringIO(done.out))
    means = {row["metric"]: float(row["mean"] or "nan") for row in rows if row["metric"]}
    assert 0 <= means["accuracy"] <= 1
    assert np.isnan(means["auc"])


def test_other_classes_are_refused_with_both_lists(evaluate: Callable, there: Path) -> None:
    table = there / "table.csv"
    table.write_text(table.read_text().replace("tumour", "tumor"))
    done = evaluate()
    assert done.code == 1
    assert "normal, tumour, the table has normal, tumor" in done.err


@pytest.mark.parametrize("name", ["config.yaml", "card.json"])
def test_a_run_is_never_written_over(evaluate: Callable, there: Path, name: str) -> None:
    (there / "out").mkdir()
    (there / "out" / name).write_text("")
    done = evaluate("--out", there / "out")
    assert done.code == 2
    assert "choose another --out" in done.err


@pytest.mark.usefixtures("no_plots")
def test_a_report_goes_into_its_own_run_but_no_other(sacmil: Callable, run: Path) -> None:
    other = run.with_name("other")
    other.mkdir()
    for folder in (run, other):
        (folder / "config.yaml").write_text("")
    done = sacmil("evaluate", run, "--out", other, *FEW)
    assert (done.code, len(list(other.iterdir()))) == (2, 1)
    assert "choose another --out" in done.err
    assert sacmil("evaluate", run, "--out", run, *FEW).code == 0


def test_a_model_without_a_cohort_is_rejected_with_a_hint(sacmil: Callable, there: Path) -> None:
    done = sacmil("evaluate", there / "model")
    assert done.code == 2
    assert "give a dataset to test it on (--table and --bags)" in done.err


def test_without_torch_runs_are_summarised_and_models_say_how_to_get_it(
    sacmil_process: Callable, there: Path, run: Path
) -> None:
    hide = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
    )
    done = sacmil_process("evaluate", run, *FEW, before=hide)
    assert (done.code, done.err) == (0, "")
    cohort = ("--table", there / "table.csv", "--bags", there / "bags")
    done = sacmil_process("evaluate", there / "model", *cohort, before=hide)
    assert done.code == 1
    assert done.err.endswith("pip install 'sacmil[torch]'\n")
