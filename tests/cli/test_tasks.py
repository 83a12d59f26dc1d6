"""Numbers, levels and findings on the command line: from columns of a table to a deployed model."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from exhaustive import mostly_slow
from onnx_registry import reused_registry

from sacmil import Bag, load_model, load_runtime, predict, read_bag, write_bag
from sacmil.card import find_model_folders, read_card
from sacmil.results import TASK_FILE, Run, read_predictions
from sacmil.tasks import MultiLabel, Ordinal, Regression, Task, get_model_task

LEVELS = ("low", "mid", "high")
HEADER = ("slide_id", "patient_id", "ki67", "til", "grade", "er", "pr", "her2")
PATIENTS = 40
QUICK = ("-o", "epochs=2", "-o", "lr=3e-2", "-o", "monitor=val_loss")
FEW = ("--draws", 20)


class Case(NamedTuple):
    """What is typed for a task, and what it says."""

    options: tuple[str, ...]
    task: Task
    titles: tuple[str, ...]
    """Of the metrics that are printed."""
    words: str
    """Of a prediction, as a regular expression."""


CASES = {
    "regression": Case(
        ("--task", "regression", "--target", "ki67"),
        Regression("ki67"),
        ("R²", "MAE", "RMSE", "Pearson", "Spearman"),
        r"ki67 -?[\d.]+ ± [\d.]+",
    ),
    "two numbers": Case(
        ("--target", "ki67,til", "--loss", "mse"),
        Regression(("ki67", "til"), "mse"),
        ("R²", "MAE", "RMSE", "Pearson", "Spearman"),
        r"ki67 -?[\d.]+, til -?[\d.]+",
    ),
    "corn": Case(
        ("--task", "ordinal", "--order", "low,mid,high", "--label-column", "grade"),
        Ordinal(LEVELS, "grade"),
        ("Quadratic kappa", "MAE", "AUC above low", "AUC above mid"),
        r"(low|mid|high), expected level from 0 \(low\) to 2 \(high\): \d\.\d\d ± \d\.\d\d",
    ),
    "multilabel": Case(
        ("--task", "multilabel", "--labels", "er,pr,her2"),
        MultiLabel(("er", "pr", "her2")),
        ("AUC", "Average precision", "F1"),
        r"(none \()?(er|pr|her2) \d\.\d\d.*",
    ),
}
CORAL = ("--order", "low, mid, high", "--label-column", "grade", "--loss", "coral")
every_case = pytest.mark.parametrize("name", CASES)
some_cases = pytest.mark.parametrize("name", mostly_slow(CASES, "two numbers", "multilabel"))


# --- a cohort, and a run for each task -----------------------------------------------------------


def draw_row(number: int, random: np.random.Generator) -> tuple[Any, ...]:
    """Targets of a patient; one label in five is unknown."""
    unknown = "" if number % 5 == 0 else number // 2 % 2
    numbers = f"{random.normal(20, 5):.2f}", f"{random.normal(3, 1):.2f}"
    return (*numbers, LEVELS[number % 3], number % 2, unknown, number // 3 % 2)


def write_cohort(folder: Path, prefix: str, patients: int, header: tuple[str, ...]) -> None:
    random = np.random.default_rng(len(prefix))
    rows = []
    for number in range(patients):
        ki67, til, grade, er, pr, her2 = row = draw_row(number, random)
        scaled = [(float(ki67) - 20) / 5, float(til) - 3, LEVELS.index(grade) - 1]
        scaled += [2 * er - 1, 2 * (pr or 0) - 1, 2 * her2 - 1]
        features = 0.7 * random.standard_normal((8, 6)) + scaled
        coords = np.stack(np.divmod(random.permutation(36)[:8], 6), 1) * 256
        name = f"{prefix}{number}"
        bag = Bag(name, features.astype(np.float32), coords, 256, 0.5)
        write_bag(folder / "bags" / f"{name}.h5", bag)
        rows.append((name, f"{prefix}p{number}", *row))
    write_table(folder / "table.csv", header, *rows)


def write_table(path: Path, *rows: tuple[object, ...]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cohort, and in its folder "other" one of another hospital."""
    folder = tmp_path_factory.mktemp("material")
    write_cohort(folder, "s", PATIENTS, HEADER)
    write_cohort(folder / "other", "new", 12, tuple("stage" if h == "grade" else h for h in HEADER))
    return folder


@pytest.fixture(scope="module")
def finished() -> dict[str, Any]:
    """How the command of each run ended, once it has."""
    return {}


@pytest.fixture
def cross_validated(sacmil: Callable, material: Path, finished: dict[str, Any]) -> Callable:
    """Returns how a cross-validation ended; its run is in the folder of the case's name."""

    def run(name: str) -> Any:
        splits = material / "splits"
        if not finished:
            options = ("--folds", 2, "--validation", 0.5, "--out", splits)
            finished["split"] = sacmil(
                "split", material / "table.csv", *CASES["multilabel"].options, *options
            )
        if name not in finished:
            models = ("--models", "mean_pool,max_pool", "--splits", splits)
            words = (*given(material, material / name), *models, *CASES[name].options, *QUICK)
            finished[name] = sacmil("crossval", *words)
        return finished[name]

    return run


@pytest.fixture
def run_of(cross_validated: Callable, material: Path) -> Callable[[str], Path]:
    """Returns the folder of the run of a case."""

    def get(name: str) -> Path:
        assert cross_validated(name).code == 0, cross_validated(name).err
        return material / name

    return get


def given(material: Path, out: Path) -> tuple[object, ...]:
    return (material / "table.csv", "--bags", material / "bags", "--out", out)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_titles(table: str) -> tuple[str, ...]:
    return tuple(re.split(r"  +", table.splitlines()[0].strip())[1:])


def read_weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def list_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def read_error(done: Any) -> str:
    """The one sentence that a command ended with."""
    assert done.out == ""
    assert "Traceback" not in done.err
    assert "fault of sacmil" not in done.err
    (message,) = (line for line in done.err.splitlines() if line.startswith("Error: "))
    return str(message)


# --- training ------------------------------------------------------------------------------------


@every_case
def test_columns_of_a_table_become_a_run_and_its_metrics(
    cross_validated: Callable, material: Path, name: str
) -> None:
    case, done = CASES[name], cross_validated(name)
    assert done.code == 0, done.err
    assert read_titles(done.out) == case.titles
    assert [line.split()[0] for line in done.out.splitlines()[2:4]] == ["max_pool", "mean_pool"]
    assert f"({PATIENTS} patients, {PATIENTS} slides); 2 folds, 1 seed" in done.out
    run = material / name
    assert json.loads((run / TASK_FILE).read_text())["settings"] == case.task.settings
    rows = read_rows(run / "predictions.csv")
    wanted = (*case.task.target_columns, *case.task.prediction_columns)
    assert tuple(rows[0])[-len(wanted) :] == wanted
    by_id = {row["slide_id"]: row for row in read_rows(material / "table.csv")}
    for row in rows:
        for column, source in zip(case.task.target_columns, case.task.source_columns, strict=True):
            one, other = row[column], by_id[row["slide_id"]][source]
            assert one == other or float(one) == float(other)
    for folder in Run(run).model_folders():
        learned = get_model_task(read_card(folder))
        assert learned.card.target_columns == case.task.target_columns
        assert learned.settings | case.task.settings == learned.settings, "besides what is learned"


@every_case
def test_features_that_show_the_targets_predict_them(
    run_of: Callable[[str], Path], name: str
) -> None:
    task, found = CASES[name].task, read_predictions(run_of(name))
    rows = found.select((found.split == "test") & (found.model == "mean_pool"))
    metric = {"regression": "spearman", "ordinal": "kappa", "multilabel": "auc"}[task.kind]
    metric = "mae" if name == "two numbers" else metric
    value = task.get_metric(metric).compute(rows.targets, rows.values)
    random = np.random.default_rng(0).permutation(len(rows))
    chance = task.get_metric(metric).compute(rows.targets, rows.values[random])
    better = chance - value if task.get_metric(metric).lower_is_better else value - chance
    assert better > 0.2


@pytest.mark.parametrize("name", mostly_slow(["regression", "corn", "multilabel"], "corn"))
def test_one_model_is_trained_as_in_the_cross_validation(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, tmp_path: Path, name: str
) -> None:
    run = run_of(name)
    words = ("--model", "mean_pool", "--splits", material / "splits", "--fold", 1)
    done = sacmil("train", *given(material, tmp_path / "one"), *words, *CASES[name].options, *QUICK)
    assert done.code == 0, done.err
    assert "mean_pool, epoch" in done.out.splitlines()[0]
    assert read_titles("\n".join(done.out.splitlines()[1:])) == CASES[name].titles
    assert read_weights(tmp_path / "one") == read_weights(run / "mean_pool/seed_0/fold_1")


def test_coral_is_trained_by_its_option(sacmil: Callable, material: Path, tmp_path: Path) -> None:
    words = ("--model", "mean_pool", "--folds", 2, *CORAL, *QUICK)
    done = sacmil("train", *given(material, tmp_path / "run"), *words)
    assert done.code == 0, done.err
    task = load_model(tmp_path / "run").known_task
    assert task == Ordinal(LEVELS, "grade", "coral")
    assert task.outputs == 1


def test_every_slide_is_trained_on_for_a_task(
    sacmil: Callable, material: Path, tmp_path: Path
) -> None:
    words = ("--all", "--model", "mean_pool", "--target", "ki67", "-o", "epochs=1")
    done = sacmil("train", *given(material, tmp_path / "all"), *words)
    assert done.code == 0, done.err
    values = [float(row["ki67"]) for row in read_rows(material / "table.csv")]
    task = get_model_task(read_card(tmp_path / "all"))
    assert isinstance(task, Regression)
    assert task.mean == pytest.approx((np.mean(values),))


def test_folds_are_stratified_and_counted_by_level(
    sacmil: Callable, material: Path, tmp_path: Path
) -> None:
    done = sacmil("split", material / "table.csv", *CASES["corn"].options, "--out", tmp_path / "a")
    assert done.code == 0, done.err
    header = next(line for line in done.out.splitlines() if line.startswith("fold"))
    assert header.split() == ["fold", "set", "all", *LEVELS]
    tests = [line.split()[3:] for line in done.out.splitlines() if " test " in line]
    counts = np.array([[int(cell.split("/")[0]) for cell in line] for line in tests])
    assert counts.sum(axis=0).tolist() == [14, 13, 13]
    assert np.ptp(counts, axis=0).max() <= 1


# --- wrong tables --------------------------------------------------------------------------------

WRONG_ROWS = (
    ("slide_id", "patient_id", "ki67", "grade", "er", "pr"),
    ("s0", "p0", "8.6", "low", "1", "0"),
    ("s1", "p1", "", "", "", "0"),
    ("s2", "p2", "12,5", "hihg", "maybe", "0"),
    ("s3", "p3", "> 80", "low", "2", "1"),
    ("s1", "p1", "9", "mid", "1", "0"),
    ("nosuch", "p9", "5", "high", "0", "1"),
)
TWICE, NO_BAG = "slide 's1' occurs 2 times (line 3, line 6); keep one row", "nosuch: has no bag"
PROBLEMS = {
    "regression": [
        "ki67 is empty in line 3; expected a number, or leave out the rows",
        "ki67 has a decimal comma in line 4, such as '12,5'; use a decimal point",
        "ki67 is '> 80' in line 5; expected a number, at most 1e+30",
    ],
    "corn": [
        "grade is empty in line 3; expected low or mid or high, or leave out the rows",
        "grade is 'hihg' in line 4; did you mean 'high'?",
    ],
    "multilabel": [
        "er is 'maybe' in line 4; expected 1, 0 or nothing",
        "er is '2' in line 5; expected 1, 0 or nothing",
    ],
}
ON_WRONG_TABLES = {
    "regression": CASES["regression"].options,
    "corn": CASES["corn"].options,
    "multilabel": ("--labels", "er,pr"),
}


def read_problems(done: Any, code: int = 1) -> list[str]:
    """The list of an error, whose length is in its first line."""
    assert done.code == code
    message = read_error(done)
    problems = [line[4:] for line in done.err.splitlines() if line.startswith("  - ")]
    assert message.endswith(f": {len(problems)} problem{'s' if len(problems) > 1 else ''}:")
    return problems


@pytest.mark.parametrize("command", ["crossval", "train", "split", "evaluate"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_everything_wrong_with_a_table_is_one_list_with_its_lines(
    sacmil: Callable,
    run_of: Callable[[str], Path],
    material: Path,
    tmp_path: Path,
    name: str,
    command: str,
) -> None:
    table = write_table(tmp_path / "table.csv", *WRONG_ROWS)
    options, out = ON_WRONG_TABLES[name], ("--out", tmp_path / "out")
    of_bags = () if command == "split" else ("--bags", material / "bags")
    if command == "evaluate":
        words: tuple[object, ...] = (run_of(name) / "mean_pool", "--table", table)
    else:
        words = (table,)
    done = sacmil(command, *words, *of_bags, *options, *out)
    wanted = [TWICE, *PROBLEMS[name]]
    wanted += [NO_BAG] if command in ("crossval", "train") else []
    assert read_problems(done) == wanted
    assert list_files(tmp_path) == ["table.csv"]


@pytest.mark.parametrize(
    ("name", "column"), [("regression", "ki67"), ("corn", "grade"), ("multilabel", "pr")]
)
def test_slides_of_a_patient_that_disagree_are_listed(
    sacmil: Callable, material: Path, tmp_path: Path, name: str, column: str
) -> None:
    rows = [("s0", "p0", "1", "low", "1", "0"), ("s1", "p1", "2", "mid", "0", "1")]
    rows += [("s2", "p0", "3", "high", "1", "1"), ("s3", "p2", "3", "low", "1", "1")]
    table = write_table(tmp_path / "table.csv", WRONG_ROWS[0], *rows)
    words = ("--bags", material / "bags", "--out", tmp_path / "out", *ON_WRONG_TABLES[name])
    assert read_problems(sacmil("crossval", table, *words)) == [
        f"patient 'p0' has slides with different values of {column} (line 2, line 4); expected one "
        "value for all slides of a patient"
    ]
    assert list_files(tmp_path) == ["table.csv"]


@pytest.mark.parametrize(
    ("name", "problems"),
    [
        ("regression", ["ki67 is 5 in every row; expected different values"]),
        ("corn", ["grade is 'low' in every row; expected different levels"]),
        (
            "multilabel",
            [
                "er is 1 in every row; expected different values",
                "pr is empty or unknown in every row; expected different values",
            ],
        ),
    ],
)
def test_a_column_of_one_value_trains_nothing(
    sacmil: Callable, material: Path, tmp_path: Path, name: str, problems: list[str]
) -> None:
    rows = [(f"s{n}", f"p{n}", "5", "low", "1", "") for n in range(4)]
    table = write_table(tmp_path / "table.csv", WRONG_ROWS[0], *rows)
    for command in ("crossval", "train", "split"):
        of_bags = () if command == "split" else ("--bags", material / "bags")
        words = (*of_bags, "--out", tmp_path / "out", *ON_WRONG_TABLES[name])
        assert read_problems(sacmil(command, table, *words)) == problems
    assert list_files(tmp_path) == ["table.csv"]


def test_a_fold_that_learns_from_one_value_is_an_error_before_training(
    sacmil: Callable, material: Path, tmp_path: Path
) -> None:
    rows = [(f"s{n}", f"p{n}", "7" if n == 0 else "5", "low", "1", "") for n in range(4)]
    table = write_table(tmp_path / "table.csv", WRONG_ROWS[0], *rows)
    words = ("--bags", material / "bags", "--target", "ki67", "--folds", 2, *QUICK)
    done = sacmil("crossval", table, "--models", "mean_pool", "--out", tmp_path / "out", *words)
    assert re.search(r"fold \d: the training set has one value of ki67 only; expected", done.err)
    assert read_error(done).startswith("Error: splits: ")
    assert list_files(tmp_path) == ["table.csv"]


def test_a_missing_column_is_named_with_those_there_are(
    sacmil: Callable, material: Path, tmp_path: Path
) -> None:
    for options in (
        ("--target", "ki76"),
        ("--labels", "er,ki76"),
        ("--order", "low,mid", "--label-column", "ki76"),
    ):
        (problem,) = read_problems(sacmil("train", *given(material, tmp_path / "run"), *options), 2)
        assert problem.startswith("there is no column 'ki76' for the target; did you mean 'ki67'?")
    assert list_files(tmp_path) == []


# --- wrong calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["crossval", "train", "split"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task", "regression"), "--target is missing; expected it for the task regression"),
        (("--task", "ordinal"), "--order is missing; expected it for the task ordinal"),
        (("--task", "multilabel"), "--labels is missing; expected it for the task multilabel"),
        (("--task", "regresion", "--target", "ki67"), "did you mean 'regression'?"),
        (("--task", "regression", "--target", "ki67", "--order", "a,b"), "of the task regression"),
        (
            ("--target", "ki67", "--labels", "er"),
            "--target is a setting of the task regression and --labels of the task multilabel; "
            "leave one out",
        ),
        (("--task", "ordinal", "--order", "low,mid", "--labels", "er"), "of the task ordinal"),
        (("--task", "ordinal", "--order", "low,mid", "--target", "grade"), "of the task ordinal"),
        (("--task", "multilabel", "--labels", "er", "--loss", "mse"), "of the task multilabel"),
        (("--task", "multilabel", "--order", "low,mid"), "of the task multilabel"),
        (("--target", "ki67", "--loss", "corn"), "--loss is 'corn'; expected huber, mse, l1"),
        (("--target", "ki67", "--loss", "hubr"), "mse, l1: did you mean 'huber'?"),
        (("--order", "low,mid", "--loss", "mse"), "--loss is 'mse'; expected corn, coral"),
        (("--loss", "mse"), "--loss is given, but the task is classes"),
        (("--target", "ki67", "--classes", "a,b"), "--classes and --target are both given"),
        (("--task", "survival", "--target", "til"), "--target is a setting of the task regression"),
        (("--time-unit", "days"), "only the task survival has it: expected --task survival"),
        (("--target", "ki67", "--label-column", "grade"), "--label-column is 'grade', but the"),
        (("--labels", "er", "--label-column", "grade"), "--label-column is 'grade', but the"),
        (("--order", "low"), "--order is low; expected two or more different levels"),
        (("--order", "low,low"), "'low,low'; expected different names, as a,b,c"),
        (("--target", "ki67,"), "'ki67,'; expected different names, as a,b,c"),
        (("--labels", "er,er"), "'er,er'; expected different names, as a,b,c"),
        (("--target", "patient_id"), "--target has 'patient_id', which is another column"),
    ],
)
def test_options_that_do_not_go_together_are_rejected(
    sacmil: Callable,
    material: Path,
    tmp_path: Path,
    options: tuple[str, ...],
    message: str,
    command: str,
) -> None:
    of_bags = () if command == "split" else ("--bags", material / "bags")
    out = ("--out", tmp_path / "run")
    done = sacmil(command, material / "table.csv", *of_bags, *out, *options)
    assert done.code == 2
    assert message in read_error(done)
    assert list_files(tmp_path) == []


@pytest.mark.parametrize(("command", "model"), [("crossval", "--models"), ("train", "--model")])
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "clam_sb",
            CASES["regression"].options,
            "clam_sb cannot be trained for regression of ki67: it learns from instances picked for "
            "and against each class. Use another model, such as sac_mil_near_far or abmil",
        ),
        (
            "norma",
            CASES["multilabel"].options,
            "norma cannot be trained for multilabel of er, pr, her2: it averages",
        ),
        (
            "dsmil",
            CORAL,
            "dsmil cannot be trained for ordinal of low, mid, high: both of its streams",
        ),
    ],
)
def test_a_model_that_needs_classes_is_rejected_before_anything_is_written(
    sacmil: Callable,
    material: Path,
    tmp_path: Path,
    name: str,
    options: tuple[str, ...],
    message: str,
    command: str,
    model: str,
) -> None:
    done = sacmil(command, *given(material, tmp_path / "run"), model, name, *options)
    assert done.code == 2
    assert message in read_error(done)
    assert list_files(tmp_path) == []


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("mean_pool,norma", "norma cannot be trained for ordinal of low, mid, high: it averages"),
        ("all", "5 models cannot be trained for ordinal of low, mid, high; leave them out:"),
    ],
)
def test_all_such_models_among_several_are_named_in_one_message(
    sacmil: Callable, material: Path, tmp_path: Path, models: str, message: str
) -> None:
    words = (*given(material, tmp_path / "run"), "--models", models, *CASES["corn"].options)
    done = sacmil("crossval", *words)
    assert done.code == 2
    assert message in read_error(done)
    if models == "all":
        for names in ("clam_mb, clam_sb: it learns", "dtfd, ibmil: its", "norma: it averages"):
            assert f"  - {names}" in done.err
    assert list_files(tmp_path) == []


def test_a_recipe_of_classes_is_rejected_before_anything_is_written(
    sacmil: Callable, material: Path, tmp_path: Path
) -> None:
    for name in ("regression", "corn"):
        words = (*CASES[name].options, "--model", "mean_pool", "-o", "label_smoothing=0.1")
        done = sacmil("train", *given(material, tmp_path / "run"), *words)
        assert done.code == 2
        assert "label_smoothing=0.1" in read_error(done)
    assert list_files(tmp_path) == []


def test_a_job_of_another_loss_names_the_difference(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path
) -> None:
    run = run_of("regression")
    words = ("--models", "mean_pool", "--splits", material / "splits", "--target", "ki67", *QUICK)
    done = sacmil("crossval", *given(material, run), *words, "--loss", "l1")
    assert done.code == 1
    assert "settings (--loss was huber, now l1); choose another --out" in read_error(done)


def test_a_run_is_not_continued_with_another_target(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path
) -> None:
    run = run_of("regression")
    before = list_files(run)
    words = ("--models", "mean_pool", "--splits", material / "splits", "--target", "til", *QUICK)
    done = sacmil("crossval", *given(material, run), *words)
    assert done.code == 1
    assert "is a run over another cohort or for another task" in read_error(done)
    assert list_files(run) == before


# --- the same in a configuration -----------------------------------------------------------------

IN_YAML = {
    "regression": "{kind: regression, targets: ki67}",
    "two numbers": "{targets: [ki67, til], loss: mse}",
    "corn": "{kind: ordinal, column: grade, order: [low, mid, high], loss: corn}",
    "multilabel": "{kind: multilabel, labels: [er, pr, her2]}",
}


def write_config(folder: Path, task: str) -> Path:
    path = folder / "config.yaml"
    training = "training: {epochs: 2, lr: 0.03, monitor: val_loss}"
    path.write_text(f"model: mean_pool\ntask: {task}\n{training}\n")
    return path


@some_cases
def test_a_task_in_a_configuration_is_that_of_the_options(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, tmp_path: Path, name: str
) -> None:
    words = ("--splits", material / "splits", "--config", write_config(tmp_path, IN_YAML[name]))
    done = sacmil("train", *given(material, tmp_path / "run"), *words)
    assert done.code == 0, done.err
    wanted = run_of(name) / "mean_pool/seed_0/fold_0"
    ours, theirs = (read_predictions(folder) for folder in (tmp_path / "run", wanted))
    assert ours.task == theirs.task == CASES[name].task.card
    assert (ours.values == theirs.values).all()
    assert read_weights(tmp_path / "run") == read_weights(wanted)


def test_options_win_over_the_task_of_a_configuration(
    sacmil: Callable, material: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path, IN_YAML["two numbers"])
    words = ("--splits", material / "splits", "--config", config, *CASES["corn"].options)
    assert sacmil("train", *given(material, tmp_path / "run"), *words).code == 0
    assert read_predictions(tmp_path / "run").task == CASES["corn"].task.card


def test_the_configuration_of_a_run_repeats_its_task(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, tmp_path: Path
) -> None:
    run = run_of("two numbers")
    words = ("--config", run / "config.yaml", "--model", "mean_pool")
    done = sacmil(
        "train", *given(material, tmp_path / "run"), *words, "--splits", material / "splits"
    )
    assert done.code == 0, done.err
    assert read_predictions(tmp_path / "run").task == CASES["two numbers"].task.card
    assert read_weights(tmp_path / "run") == read_weights(run / "mean_pool/seed_0/fold_0")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("5", "--task is 5; expected a task"),
        ("[ki67]", "--task is ['ki67']; expected a task"),
        ("regression", "--target is missing"),
        ("{kind: regresion, targets: ki67}", "did you mean 'regression'?"),
        ("{kind: regression, targets: ki67, los: mse}", "did you mean 'loss'?"),
        ("{targets: 5}", "settings of the task regression"),
        ("{kind: ordinal, order: low}", "expected two or more different levels"),
    ],
)
def test_a_wrong_task_in_a_configuration_is_one_sentence(
    sacmil: Callable, material: Path, tmp_path: Path, task: str, message: str
) -> None:
    config = write_config(tmp_path, task)
    done = sacmil("train", *given(material, tmp_path / "run"), "--config", config)
    assert done.code == 2
    assert message in read_error(done)
    assert list_files(tmp_path) == ["config.yaml"]


# --- predicting ----------------------------------------------------------------------------------


@some_cases
def test_an_ensemble_predicts_the_mean_in_the_columns_of_the_task(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, tmp_path: Path, name: str
) -> None:
    case, run = CASES[name], run_of(name) / "mean_pool"
    words = ("--model", run, "--out", tmp_path / "out", "--no-heatmaps", "--device", "cpu")
    done = sacmil("predict", material / "other/bags", *words)
    assert done.code == 0, done.err
    lines = [line for line in done.out.splitlines() if line.startswith("new")]
    assert len(lines) == 12
    for line in lines:
        assert re.fullmatch(rf"new\d+  mean_pool: {case.words}", line), line
    models = [load_model(folder) for folder in find_model_folders(run)]
    assert len(models) == 2
    for row in read_rows(tmp_path / "out/predictions.csv"):
        columns = case.task.prediction_columns
        assert tuple(row)[3 : 3 + len(columns)] == columns
        bag = read_bag(material / f"other/bags/{row['slide_id']}.h5")
        members = np.array([predict(model, bag).values for model in models])
        found = [float(row[column]) for column in columns]
        np.testing.assert_allclose(found, members.mean(axis=0), rtol=1e-5, atol=1e-6)
        line = next(line for line in lines if line.startswith(f"{row['slide_id']} "))
        assert row["predicted"].split(", ")[0] in line


@pytest.mark.parametrize("name", mostly_slow(["regression", "corn", "multilabel"], "multilabel"))
def test_a_page_explains_the_prediction_of_a_slide(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, tmp_path: Path, name: str
) -> None:
    words = ("--model", run_of(name) / "mean_pool", "--out", tmp_path / "out", "--device", "cpu")
    done = sacmil("predict", material / "other/bags/new1.h5", *words, "--report")
    assert done.code == 0, done.err
    page = (tmp_path / "out/reports/new1.html").read_text(encoding="utf-8")
    headline = done.out.splitlines()[0].split(": ", 1)[1].split(" ±")[0]
    assert f"The model predicts {headline}" in page
    assert "Research use only" in page


def test_models_of_different_targets_are_not_joined(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, tmp_path: Path
) -> None:
    one, other = (run_of(name) / "mean_pool" for name in ("regression", "corn"))
    words = ("--model", one, "--model", other, "--out", tmp_path / "out")
    message = read_error(sacmil("predict", material / "other/bags", *words))
    assert "the models predict different targets" in message
    for command in ("evaluate", "compare"):
        message = read_error(sacmil(command, one.parent, other.parent, *FEW))
        assert "predictions of different targets cannot be joined" in message
    assert list_files(tmp_path) == []


# --- evaluating and comparing --------------------------------------------------------------------


@every_case
def test_a_run_is_evaluated_by_the_metrics_of_its_task(
    sacmil: Callable, run_of: Callable[[str], Path], name: str
) -> None:
    run, task = run_of(name), CASES[name].task
    done = sacmil("evaluate", run, *FEW)
    assert (done.code, done.err) == (0, "")
    assert read_titles(done.out) == CASES[name].titles
    done = sacmil("evaluate", run, "--metrics", task.headline, "--format", "csv", *FEW)
    found = read_predictions(run)
    for row in csv.DictReader(done.out.splitlines()):
        rows = found.select((found.model == row["model"]) & (found.split == "test"))
        folds = [rows.select(rows.fold == fold) for fold in (0, 1)]
        values = [task.get_metric(task.headline).compute(f.targets, f.values) for f in folds]
        assert float(row["mean"]) == pytest.approx(np.mean(values))
    wrong = sacmil("evaluate", run, "--metrics", "accuracy")
    assert wrong.code == 2
    assert "there is no metric 'accuracy'" in read_error(wrong)


@some_cases
def test_another_hospitals_table_needs_only_the_name_of_its_levels(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, tmp_path: Path, name: str
) -> None:
    case, other = CASES[name], material / "other"
    words = (run_of(name) / "mean_pool", "--table", other / "table.csv", "--bags", other / "bags")
    if case.task.kind == "ordinal":
        (problem,) = read_problems(sacmil("evaluate", *words), 2)
        assert problem.startswith("there is no column 'grade' for the target")
        words = (*words, "--order", "low,mid,high", "--label-column", "stage")
    out = ("--out", tmp_path / "out") if name in ("two numbers", "corn") else ()
    done = sacmil("evaluate", *words, *out, *FEW)
    assert done.code == 0, done.err
    assert read_titles(done.out) == case.titles
    assert "12 patients, 12 slides" in done.out
    if out:
        found = read_predictions(tmp_path / "out")
        assert found.task.target_columns == case.task.target_columns
        cells = {row["slide_id"]: row for row in read_rows(other / "table.csv")}
        for slide_id, targets in zip(found.slide_id.tolist(), found.targets, strict=True):
            row = cells[slide_id]
            wanted = [float(row[c]) for c in ("ki67", "til")] if name == "two numbers" else None
            assert targets.tolist() == (wanted or [LEVELS.index(row["stage"])])


def test_a_table_read_for_another_target_is_rejected(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path
) -> None:
    other = material / "other"
    words = (run_of("regression") / "mean_pool", "--table", other / "table.csv")
    for options in (
        ("--target", "til"),
        ("--labels", "er"),
        ("--order", "low,mid,high", "--label-column", "stage"),
        ("--task", "classification", "--label-column", "stage"),
    ):
        done = sacmil("evaluate", *words, "--bags", other / "bags", *options, *FEW)
        assert done.code == 1
        message = read_error(done)
        assert "mean_pool: predicts regression of ki67, the table was read for" in message


def test_a_table_with_one_value_has_an_error_and_no_r2(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, tmp_path: Path
) -> None:
    rows = [(f"new{n}", f"p{n}", "5") for n in range(3)]
    table = write_table(tmp_path / "table.csv", WRONG_ROWS[0][:3], *rows)
    words = ("--table", table, "--bags", material / "other/bags", "--metrics", "r2,mae")
    done = sacmil("evaluate", run_of("regression") / "mean_pool", *words, *FEW, "--format", "csv")
    assert done.code == 0, done.err
    r2, mae = csv.DictReader(done.out.splitlines())
    assert (r2["mean"] in ("", "nan"), float(mae["mean"]) > 0) == (True, True)


@every_case
def test_models_are_compared_by_the_headline_of_the_task(
    sacmil: Callable, run_of: Callable[[str], Path], name: str
) -> None:
    task, run = CASES[name].task, run_of(name)
    done = sacmil("compare", run, *FEW)
    assert done.code == 0, done.err
    title = task.get_metric(task.headline).title
    assert title in done.out
    assert re.search(r"^(max_pool|mean_pool) ", done.out, re.MULTILINE)
    other = task.default_metrics[1]
    done = sacmil("compare", run, "--metric", other, *FEW)
    assert task.get_metric(other).title in done.out
    wrong = sacmil("compare", run, "--metric", "brier", *FEW)
    assert wrong.code == 2
    assert "there is no metric 'brier'" in read_error(wrong)


# --- calibrating and exporting -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["regression", "corn"])
def test_what_has_no_probabilities_of_findings_cannot_be_calibrated(
    sacmil: Callable, run_of: Callable[[str], Path], name: str
) -> None:
    run = run_of(name)
    cards = [folder / "card.json" for folder in Run(run).model_folders()]
    before = [card.read_bytes() for card in cards]
    for words in (("calibrate", run), ("evaluate", run, "--calibrated", *FEW)):
        done = sacmil(*words)
        assert done.code != 0
        assert f"{CASES[name].task.kind} cannot be calibrated; expected" in read_error(done)
    assert [card.read_bytes() for card in cards] == before


@pytest.fixture
def calibrated(
    sacmil: Callable,
    run_of: Callable[[str], Path],
    finished: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """How the calibration of the findings ended; it accepts ten validation patients."""
    monkeypatch.setattr("sacmil.tasks.calibration.MIN_PATIENTS", 10)
    run = run_of("multilabel")
    if "calibrated" not in finished:
        finished["calibrated"] = sacmil("calibrate", run, "--sensitivity", 0.9)
    return finished["calibrated"]


@pytest.mark.filterwarnings("default::sacmil.errors.CohortWarning")
def test_each_finding_gets_a_temperature_and_a_threshold(
    calibrated: Any, run_of: Callable[[str], Path]
) -> None:
    assert calibrated.code == 0, calibrated.err
    assert "4 cards written; use them with --calibrated" in calibrated.out
    rows = [line.split() for line in calibrated.out.splitlines()[2:14]]
    assert [row[3] for row in rows] == ["er", "pr", "her2"] * 4
    for folder in Run(run_of("multilabel")).model_folders():
        found = read_card(folder).calibration or {}
        assert len(found["temperatures"]) == len(found["thresholds"]) == 3
        assert all(reached >= 0.9 for reached, _ in found["reached"])


@pytest.mark.filterwarnings("default::sacmil.errors.CohortWarning")
def test_thresholds_of_findings_are_evaluated(
    sacmil: Callable, calibrated: Any, run_of: Callable[[str], Path]
) -> None:
    assert calibrated.code == 0
    done = sacmil("evaluate", run_of("multilabel"), "--calibrated", *FEW)
    assert done.code == 0, done.err
    assert "Sensitivity" in done.out
    assert "sensitivity of at least 0.9" in done.out


@pytest.mark.parametrize("name", mostly_slow(["regression", "multilabel"], "multilabel"))
@pytest.mark.filterwarnings("default::sacmil.errors.CohortWarning")
def test_an_export_predicts_what_the_model_predicts(
    sacmil: Callable, calibrated: Any, run_of: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    assert calibrated.code == 0
    model, material = run_of(name) / "mean_pool/seed_0/fold_0", run_of(name).parent
    with reused_registry():
        done = sacmil("export", model, "--out", tmp_path / "onnx")
    assert done.code == 0, done.err
    assert load_runtime(tmp_path / "onnx").task == get_model_task(read_card(model))
    settings = [()] if name != "multilabel" else [(), ("--calibrated",)]
    tables = {}
    for source in (model, tmp_path / "onnx"):
        for options in settings:
            out = tmp_path / f"{source.name}{len(options)}"
            words = ("--model", source, "--out", out, "--no-heatmaps", "--device", "cpu")
            done = sacmil("predict", material / "other/bags", *words, *options)
            assert done.code == 0, done.err
            tables[source.name, len(options)] = read_rows(out / "predictions.csv")
    for options in settings:
        ours, theirs = (tables[kind, len(options)] for kind in ("fold_0", "onnx"))
        for one, other in zip(ours, theirs, strict=True):
            assert one["predicted"] == other["predicted"]
            assert one["model_hash"] == other["model_hash"]
            for column in CASES[name].task.prediction_columns:
                assert float(one[column]) == pytest.approx(float(other[column]), rel=1e-4, abs=1e-5)
    if name == "multilabel":
        assert tables["onnx", 0][0]["p_er"] != tables["onnx", 1][0]["p_er"]


def test_a_model_without_a_calibration_is_not_used_as_calibrated(
    sacmil: Callable, run_of: Callable[[str], Path], material: Path, tmp_path: Path
) -> None:
    for name in ("regression", "corn"):
        words = ("--model", run_of(name) / "mean_pool", "--out", tmp_path / "out", "--calibrated")
        done = sacmil("predict", material / "other/bags", *words)
        assert done.code != 0
        assert "calibrated" in read_error(done)
    assert list_files(tmp_path) == []
