"""Predictions of numbers, levels and labels: as files, and evaluated."""

from __future__ import annotations

import gzip
import html
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exhaustive import choose_count, mostly_slow
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from predicted import predicted
from simulated_targets import simulate
from target_cohort import OTHERS, TASKS

from sacmil.errors import ConfigError, OptionError, RunError
from sacmil.evaluation.comparison import compare_models, list_conclusions, mean_ranks
from sacmil.evaluation.fold_results import average_by_patient, collect_fold_results, find_unit
from sacmil.evaluation.plots import draw_confusion
from sacmil.evaluation.significance import holm, permutation_test
from sacmil.evaluation.summary import summarize
from sacmil.evaluation.table_format import TableStyle, render_table
from sacmil.evaluation.tables import breakdown_table, fold_table, misclassified_table, summary_table
from sacmil.evaluation.value_plots import draw_label_roc, draw_residuals, draw_scatter
from sacmil.results import (
    PREDICTIONS_FILE,
    TASK_FILE,
    Predictions,
    Run,
    TaskCard,
    read_predictions,
    write_predictions,
)
from sacmil.tasks import MultiLabel, Ordinal, Regression, Task
from sacmil.workflows.evaluate import evaluate

other_tasks = pytest.mark.parametrize("name", OTHERS)
few = settings(
    deadline=None,
    max_examples=30,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
ODD = ("=1+1", "größe µm", "Ki67, %", 'say "x"', "@SUM", "-a", "two\nlines", "<b>&amp;", " spaced ")


def simulated(name: str, seed: int = 0, **changes: Any) -> Predictions:
    return simulate(TASKS[name], np.random.default_rng(seed), **changes)


def same(one: Predictions, other: Predictions) -> bool:
    columns = ("slide_id", "patient_id", "split", "fold", "seed", "model", "values")
    equal = [np.array_equal(getattr(one, name), getattr(other, name)) for name in columns]
    targets = np.array_equal(one.targets, other.targets, equal_nan=True)
    return one.task == other.task and targets and all(equal)


# --- files ---------------------------------------------------------------------------------------


@other_tasks
@pytest.mark.parametrize("file", [PREDICTIONS_FILE, "colon.csv.gz"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str, file: str) -> None:
    table = simulated(name, models="ab", folds=3, slides=2, seeds=2)
    write_predictions(tmp_path / file, table)
    assert same(read_predictions(tmp_path / file), table)
    assert json.loads((tmp_path / TASK_FILE).read_text()) == json.loads(
        json.dumps(asdict(table.task))
    )


def test_a_compressed_table_has_the_bytes_of_the_other(tmp_path: Path) -> None:
    table = simulated("multilabel")
    for file in ("one.csv", "one.csv.gz"):
        write_predictions(tmp_path / file, table)
    assert (
        gzip.decompress((tmp_path / "one.csv.gz").read_bytes())
        == (tmp_path / "one.csv").read_bytes()
    )


@few
@given(st.lists(st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 4), max_size=5))
def test_any_number_is_read_again_to_the_last_bit(
    tmp_path: Path, rows: list[tuple[float, ...]]
) -> None:
    listed = [(f"s{n}", f"p{n}", "test", 0, 0, "m", row[:2]) for n, row in enumerate(rows)]
    table = Predictions.from_rows(TASKS["two numbers"].card, listed, [row[2:] for row in rows])
    write_predictions(tmp_path / PREDICTIONS_FILE, table)
    assert same(read_predictions(tmp_path), table)


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_read_again(tmp_path: Path, name: str) -> None:
    tasks = (
        Regression(name),
        Regression((name, "b")),
        Ordinal((name, "b")),
        MultiLabel((name, "b")),
    )
    for number, task in enumerate(tasks):
        row = (name, name, "test", 0, 0, name, (1.0,) * len(task.target_columns))
        table = Predictions.from_rows(task.card, [row], [[0.25] * len(task.prediction_columns)])
        folder = tmp_path / str(number)
        folder.mkdir()
        write_predictions(folder / PREDICTIONS_FILE, table)
        assert same(read_predictions(folder), table)
        header = (folder / PREDICTIONS_FILE).read_text(encoding="utf-8")
        assert not any(cell[:1] in "=@-" for cell in header.split("\n")[0].split(",") if cell)


@other_tasks
def test_a_frame_has_every_column_of_the_file(tmp_path: Path, name: str) -> None:
    table = simulated(name)
    write_predictions(tmp_path / PREDICTIONS_FILE, table)
    frame = Run(tmp_path).to_frame()
    header = (tmp_path / PREDICTIONS_FILE).read_text().splitlines()[0]
    assert ",".join(frame.columns) == header
    np.testing.assert_array_equal(frame[list(table.task.prediction_columns)], table.values)
    if table.task.levels:
        assert frame["label"].tolist() == [table.task.levels[label] for label in table.label]
    else:
        np.testing.assert_array_equal(frame[list(table.task.target_columns)], table.targets)


@other_tasks
@pytest.mark.parametrize(
    "change",
    [
        {"kind": None},
        {"kind": "nosuch"},
        {"kind": 5},
        {"settings": None},
        {"settings": []},
        {"settings": {}},
        {"target_columns": None},
        {"target_columns": []},
        {"target_columns": "ki67"},
        {"target_columns": [5]},
        {"prediction_columns": "value"},
        {"prediction_columns": ["nosuch"]},
        {"levels": "low"},
        {"levels": None},
        {"levels": ["a", "b"]},
    ],
)
def test_a_damaged_task_file_is_an_error_in_a_sentence(
    tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    write_predictions(tmp_path / PREDICTIONS_FILE, simulated(name, patients=6))
    card = json.loads((tmp_path / TASK_FILE).read_text())
    card |= change
    card = {key: value for key, value in card.items() if value is not None}
    (tmp_path / TASK_FILE).write_text(json.dumps(card))
    with pytest.raises((RunError, OptionError)) as raised:
        summarize(read_predictions(tmp_path), draws=2)
    words = (
        "task.json: cannot be read",
        "by task.json beside it",
        "there is no task",
        "copy the file",
    )
    expected = (*words, "is missing; expected it for the task", "is unknown", "cannot be parsed")
    assert any(text in str(raised.value) for text in expected), raised.value


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"5", b"\xff\xfe", b"[" * 100_000, b'{"kind":1}']
)
def test_a_task_file_that_is_none_is_rejected(tmp_path: Path, content: bytes) -> None:
    write_predictions(tmp_path / PREDICTIONS_FILE, simulated("corn", patients=6))
    (tmp_path / TASK_FILE).write_bytes(content)
    with pytest.raises(RunError, match=r"task\.json: cannot be read.*restore it"):
        read_predictions(tmp_path)
    with pytest.raises(RunError, match=r"task\.json: cannot be read.*restore it"):
        write_predictions(tmp_path / PREDICTIONS_FILE, simulated("corn", patients=6))


@other_tasks
def test_a_table_without_its_task_file_is_never_one_of_classes(tmp_path: Path, name: str) -> None:
    write_predictions(tmp_path / PREDICTIONS_FILE, simulated(name, patients=6))
    (tmp_path / TASK_FILE).unlink()
    with pytest.raises(RunError, match=r"task\.json beside it"):
        read_predictions(tmp_path)


@pytest.mark.parametrize("folder", [".", "m/seed_0/fold_0"])
def test_the_card_of_a_model_says_that_predictions_are_not_of_classes(
    tmp_path: Path, folder: str
) -> None:
    classes = predicted(patients=6)
    write_predictions(tmp_path / PREDICTIONS_FILE, classes)
    card = tmp_path / folder / "card.json"
    card.parent.mkdir(parents=True, exist_ok=True)
    for text in ('{"task": null}', "{}", "damaged", '{"task": {"kind": "classification"}}'):
        card.write_text(text)
        assert same(read_predictions(tmp_path), classes)
    card.write_text('{"task": {"kind": "counts"}}')
    with pytest.raises(RunError, match=r"by .*card\.json, a model for counts.*restore that file"):
        read_predictions(tmp_path)


def test_a_table_without_its_task_file_says_what_is_missing(tmp_path: Path) -> None:
    for name in ("regression", "multilabel"):
        folder = tmp_path / name
        folder.mkdir()
        write_predictions(folder / PREDICTIONS_FILE, simulated(name, patients=6))
        (folder / TASK_FILE).unlink()
        with pytest.raises(RunError, match=r"lacks label.*or task\.json beside it, of its run$"):
            read_predictions(folder)


@other_tasks
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("test,0,0,a", "test,x,0,a"),
        ("test,0,0,a", "nosuch,0,0,a"),
        ("test,0,0,a", "test,0,0,"),
        ("s0-0,p0", "s0-0,"),
        ("\n", ",extra\n"),
    ],
)
def test_a_damaged_row_is_named(tmp_path: Path, name: str, old: str, new: str) -> None:
    write_predictions(tmp_path / PREDICTIONS_FILE, simulated(name, patients=6))
    header, first, *others = (tmp_path / PREDICTIONS_FILE).read_text().splitlines(keepends=True)
    assert old in first
    (tmp_path / PREDICTIONS_FILE).write_text("".join([header, first.replace(old, new, 1), *others]))
    with pytest.raises(RunError, match=r"predictions\.csv, line 2: cannot be parsed"):
        read_predictions(tmp_path)


@other_tasks
@pytest.mark.parametrize("cell", ["", "nan", "inf", "x", "1e999"])
def test_a_prediction_that_is_no_number_is_named(tmp_path: Path, name: str, cell: str) -> None:
    write_predictions(tmp_path / PREDICTIONS_FILE, simulated(name, patients=6))
    lines = (tmp_path / PREDICTIONS_FILE).read_text().splitlines()
    lines[3] = ",".join([*lines[3].split(",")[:-1], cell])
    (tmp_path / PREDICTIONS_FILE).write_text("\n".join(lines))
    with pytest.raises(RunError, match=r"predictions\.csv, line 4: cannot be parsed"):
        read_predictions(tmp_path)


def test_an_unknown_level_and_a_missing_number_are_named(tmp_path: Path) -> None:
    for name, cell in (("corn", "nosuch"), ("regression", "nan"), ("two numbers", "inf")):
        folder = tmp_path / name
        folder.mkdir()
        write_predictions(folder / PREDICTIONS_FILE, simulated(name, patients=6))
        lines = (folder / PREDICTIONS_FILE).read_text().splitlines()
        cells = lines[1].split(",")
        lines[1] = ",".join([*cells[:6], cell, *cells[7:]])
        (folder / PREDICTIONS_FILE).write_text("\n".join(lines))
        with pytest.raises(RunError, match=r"predictions\.csv, line 2: cannot be parsed"):
            read_predictions(folder)


def test_columns_of_another_task_are_named(tmp_path: Path) -> None:
    write_predictions(tmp_path / PREDICTIONS_FILE, simulated("regression", patients=6))
    text = (tmp_path / PREDICTIONS_FILE).read_text()
    (tmp_path / PREDICTIONS_FILE).write_text(text.replace("ki67", "til", 1))
    with pytest.raises(RunError, match=r"has the columns .*til, value; expected .*ki67, value"):
        read_predictions(tmp_path)


def test_a_slide_has_one_target(tmp_path: Path) -> None:
    table = simulated("multilabel", models="ab", patients=6)
    wrong = table.targets.copy()
    row = int(np.flatnonzero(~np.isnan(wrong[:6, 1]))[0])
    wrong[row, 1] = 1 - wrong[row, 1]
    write_predictions(tmp_path / PREDICTIONS_FILE, replace(table, targets=wrong))
    read_predictions(tmp_path)  # models may have been tested on other labels
    both = Predictions.concatenate([table, replace(table, targets=wrong, fold=table.fold + 1)])
    write_predictions(tmp_path / PREDICTIONS_FILE, both)
    with pytest.raises(RunError, match=f"slide 's{row}-0' has 2 labels; expected one"):
        read_predictions(tmp_path)


SAME_COLUMNS = ({"corn", "coral"}, {"survival", "cox"})


def test_predictions_of_different_targets_are_not_joined(tmp_path: Path) -> None:
    tables = {name: simulated(name, patients=6) for name in OTHERS}
    tables["other column"] = replace(
        tables["regression"], task=replace(tables["regression"].task, target_columns=("til",))
    )
    classes = Predictions.from_rows(["a", "b"], [("s", "p", "test", 0, 0, "m", 1)], [[0.5, 0.5]])
    for one, first in {**tables, "classes": classes}.items():
        for other, second in tables.items():
            if one == other or {one, other} in SAME_COLUMNS:
                continue
            with pytest.raises(RunError, match="predictions of different targets cannot be joined"):
                Predictions.concatenate([first, second])
            folder = tmp_path / f"{one} {other}"
            folder.mkdir()
            write_predictions(folder / "one.csv", second)
            with pytest.raises(RunError, match=r"holds predictions of .* choose another folder"):
                write_predictions(folder / "two.csv", first)
    assert len(Predictions.concatenate([tables["corn"], tables["coral"]])) == 12, "same columns"


@pytest.mark.parametrize("order", [1, -1])
def test_runs_of_different_targets_are_named(tmp_path: Path, order: int) -> None:
    tables = {"numbers": simulated("regression", models="a"), "classes": predicted(("a",))}
    for name, table in tables.items():
        (tmp_path / name).mkdir()
        write_predictions(tmp_path / name / PREDICTIONS_FILE, table)
    runs = [tmp_path / name for name in tables][::order]
    with pytest.raises(RunError) as caught:
        evaluate(runs, draws=5)
    assert "regression of ki67" in str(caught.value)
    assert "classification of normal, tumour" in str(caught.value)


def test_files_of_classes_are_what_they_were(tmp_path: Path) -> None:
    rows = [("s1", "=p", "test", 0, 1, "abmil", 1), ("s2", "x", "val", 0, 1, "abmil", 0)]
    table = Predictions.from_rows(["no", "=yes"], rows, [[0.25, 0.75], [1 / 3, 2 / 3]])
    write_predictions(tmp_path / PREDICTIONS_FILE, table)
    assert [file.name for file in tmp_path.iterdir()] == [PREDICTIONS_FILE]
    assert (tmp_path / PREDICTIONS_FILE).read_bytes() == (
        b"slide_id,patient_id,split,fold,seed,model,label,p_no,p_=yes\n"
        b"s1,'=p,test,0,1,abmil,'=yes,0.25,0.75\n"
        b"s2,x,val,0,1,abmil,no,0.3333333333333333,0.6666666666666666\n"
    )
    assert read_predictions(tmp_path).task == TaskCard.of_classes(["no", "=yes"])


# --- metrics -------------------------------------------------------------------------------------


@other_tasks
def test_an_estimate_is_the_mean_over_folds_of_the_mean_over_seeds(name: str) -> None:
    task, table = TASKS[name], simulated(name, folds=3, seeds=2)
    found = summarize(table, metrics="all", draws=20)["a"]
    assert tuple(found) == task.list_metrics("all")
    for metric, estimate in found.items():
        one = task.get_metric(metric)
        expected, sizes = [], []
        for fold in range(3):
            own = table.targets[(table.fold == fold) & (table.seed == 0)]
            sizes.append(one.fold_size(own, np.ones((1, 20)))[0] if one.fold_size else 1)
            parts = [table.select((table.fold == fold) & (table.seed == seed)) for seed in (0, 1)]
            expected.append(np.mean([one.compute(p.targets, p.values.round(12)) for p in parts]))
        np.testing.assert_allclose(estimate.values, expected)
        mean = np.average(expected, weights=sizes)
        assert estimate.mean == pytest.approx(mean, nan_ok=True)
        assert estimate.std == pytest.approx(np.std(expected, ddof=1), nan_ok=True)
        assert estimate.title == one.title
        if math.isfinite(estimate.mean):
            assert estimate.low <= estimate.mean <= estimate.high, metric


@other_tasks
def test_slides_of_a_patient_are_averaged(name: str) -> None:
    table = simulated(name, slides=3, patients=20)
    averaged = average_by_patient(table)
    assert find_unit(table) == "patient"
    assert len(averaged) == 20
    for row, patient in enumerate(averaged.patient_id.tolist()):
        own = table.select(table.patient_id == patient)
        np.testing.assert_allclose(averaged.values[row], own.values.mean(axis=0), atol=1e-11)
        np.testing.assert_array_equal(averaged.targets[row], own.targets[0])
    assert summarize(table, draws=20) == summarize(averaged, draws=20)
    if TASKS[name].kind == "ordinal":
        values = averaged.values
        np.testing.assert_allclose(values[:, :-1] @ [0, 1, 2], values[:, -1], atol=1e-9)


def test_hand_made_numbers() -> None:
    rows = [
        (f"s{n}", f"p{n}", "test", n // 3, 0, "m", y) for n, y in enumerate([1, 2, 3, 10, 20, 60])
    ]
    table = Predictions.from_rows(TASKS["regression"].card, rows, [[1], [2], [4], [20], [20], [50]])
    found = summarize(table, draws=5)["m"]
    assert found["r2"].values == pytest.approx((0.5, 1 - 200 / 1400))
    assert found["mae"].values == pytest.approx((1 / 3, 20 / 3))
    assert found["rmse"].mean == pytest.approx((math.sqrt(1 / 3) + math.sqrt(200 / 3)) / 2)
    assert found["mae"].lower_is_better
    assert not found["r2"].lower_is_better


def test_hand_made_levels() -> None:
    p = {0: [0.8, 0.1, 0.1], 1: [0.2, 0.5, 0.3], 2: [0.1, 0.2, 0.7]}
    truth, predicted = [0, 0, 1, 1, 2, 2], [0, 1, 1, 1, 2, 0]
    rows = [(f"s{n}", f"p{n}", "test", 0, 0, "m", y) for n, y in enumerate(truth)]
    values = [[*p[k], np.dot(p[k], [0, 1, 2])] for k in predicted]
    found = summarize(Predictions.from_rows(TASKS["corn"].card, rows, values), draws=5)["m"]
    assert found["mae"].mean == pytest.approx(3 / 6)
    chance = sum((a - b) ** 2 for a in truth for b in predicted) / 6
    squares = sum((a - b) ** 2 for a, b in zip(truth, predicted, strict=True))
    assert found["kappa"].mean == pytest.approx(1 - squares / chance)
    assert tuple(found) == ("kappa", "mae", "auc_above_low", "auc_above_mid")
    above = {0: [0.2, 0.1], 1: [0.8, 0.3], 2: [0.9, 0.7]}  # low, mid
    for k, metric in enumerate(("auc_above_low", "auc_above_mid")):
        scores = [above[level][k] for level in predicted]
        pairs = [
            (scores[i] > scores[j]) + (scores[i] == scores[j]) / 2
            for i in range(6)
            for j in range(6)
            if truth[i] > k >= truth[j]
        ]
        assert found[metric].mean == pytest.approx(np.mean(pairs))


def test_means_over_labels_and_folds_are_over_the_same_pairs_that_have_both_values() -> None:
    table = simulated("multilabel", folds=3, patients=90)
    targets = table.targets.copy()
    targets[table.fold == 0, 1] = np.nan
    targets[table.fold == 1, 2] = 1.0
    changed = replace(table, targets=targets)
    found = summarize(changed, metrics="all", draws=30)["a"]
    assert np.isnan(found["auc_pr"].values).tolist() == [True, False, False]
    assert np.isnan(found["auc_her2"].values).tolist() == [False, True, False]
    assert np.isfinite(found["auc_er"].values).all()
    assert found["auc_pr"].mean == pytest.approx(np.mean(found["auc_pr"].values[1:]))
    assert found["auc_pr"].low < found["auc_pr"].mean < found["auc_pr"].high
    for fold, labels in enumerate((("er", "her2"), ("er", "pr"), ("er", "pr", "her2"))):
        for metric in ("auc", "average_precision", "f1"):
            each = [found[f"{metric}_{label}"].values[fold] for label in labels]
            assert found[metric].values[fold] == pytest.approx(np.mean(each))
    for metric in ("auc", "average_precision", "f1"):
        of_labels = [found[f"{metric}_{label}"].mean for label in ("er", "pr", "her2")]
        assert found[metric].mean == pytest.approx(np.average(of_labels, weights=[3, 2, 2]))
    compared = compare_models(
        Predictions.concatenate([changed, replace(changed, model=np.full(90, "b"))]),
        metric="auc_pr",
        draws=20,
    )[0]
    assert compared.p_permutation == 1
    assert compared.difference == 0


def test_a_label_that_no_fold_has_both_values_of_has_no_metrics_and_is_in_no_mean() -> None:
    table = simulated("multilabel", folds=2, patients=60)
    targets = table.targets.copy()
    targets[:, 1] = 1.0
    found = summarize(replace(table, targets=targets), metrics="all", draws=30)["a"]
    for metric in ("auc", "average_precision", "f1"):
        assert math.isnan(found[f"{metric}_pr"].mean)
        others = [found[f"{metric}_{label}"].mean for label in ("er", "her2")]
        assert found[metric].mean == pytest.approx(np.mean(others))
    one = breakdown_table(table, level=0.95, draws=9, seed=0, style=TableStyle())
    assert one is not None
    assert "all these pairs of label and test set" in one.caption


def test_a_metric_of_another_task_is_rejected() -> None:
    for name, metric in (("regression", "auc"), ("corn", "r2"), ("multilabel", "kappa")):
        with pytest.raises(ConfigError, match=f"there is no metric {metric!r}"):
            summarize(simulated(name), metrics=metric, draws=2)
        with pytest.raises(ConfigError, match=f"there is no metric {metric!r}"):
            compare_models(simulated(name, models="ab"), metric=metric, draws=2)


# --- intervals and comparisons -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "metric", "folds", "least"),
    [
        ("regression", "r2", 1, 0.85),
        ("regression", "r2", 5, 0.85),
        ("corn", "kappa", 1, 0.8),
        ("multilabel", "auc", 1, 0.85),
    ],
)
def test_intervals_cover_the_truth(name: str, metric: str, folds: int, least: float) -> None:
    """Of 60 patients; with one test set, or with folds of 12, whose R² is far too low."""
    many = simulated(name, 99, patients=20_000)
    truth = TASKS[name].get_metric(metric).compute(many.targets, many.values)
    hits = 0
    for seed in range(60):
        table = simulated(name, seed, patients=60, folds=folds)
        found = summarize(table, metrics=metric, draws=200, seed=seed)["a"][metric]
        hits += found.low <= truth <= found.high
        assert folds > 1 or found.high - found.low < 1
        assert found.high <= 1
    assert hits >= least * 60


@other_tasks
def test_a_model_does_not_differ_from_its_copy(name: str) -> None:
    one = simulated(name, folds=3, seeds=2, slides=2)
    both = Predictions.concatenate([one, replace(one, model=np.full(len(one), "b"))])
    for metric in TASKS[name].list_metrics("all"):
        (found,) = compare_models(both, metric=metric, draws=50)
        assert found.difference == 0
        assert (found.low, found.high) == (0, 0)
        assert found.p_permutation == found.p_holm == 1


@pytest.mark.parametrize(
    "name", mostly_slow(OTHERS, "two numbers", "coral", "multilabel", "survival")
)
def test_a_better_model_is_found_and_ranked_first(name: str) -> None:
    good = simulated(name, folds=3, noise=0.2)
    bad = simulated(name, folds=3, noise=6)
    assert np.array_equal(good.targets, bad.targets, equal_nan=True)
    both = Predictions.concatenate([good, replace(bad, model=np.full(len(bad), "b"))])
    for metric in (None, *TASKS[name].default_metrics):
        if metric == "ibs_km":  # of no model
            continue
        (found,) = compare_models(both, metric=metric, draws=100)
        assert found.p_permutation < 0.02
        assert (found.difference < 0) == found.lower_is_better
        ends = (found.low, found.high)
        assert ends[0] <= found.difference <= ends[1]
        assert ends[0] > 0 or ends[1] < 0
        assert mean_ranks(both, metric) == {"a": 1, "b": 2}


def test_several_comparisons_are_corrected_by_holm() -> None:
    table = simulated("regression", models="abcd", folds=3)
    found = compare_models(table, draws=50)
    assert len(found) == 6
    assert [pair.p_holm for pair in found] == holm([pair.p_permutation for pair in found])
    assert {pair.title for pair in found} == {"R²"}
    against = compare_models(table, against="b", draws=50)
    assert [(pair.first, pair.second) for pair in against] == [("b", "a"), ("b", "c"), ("b", "d")]


def test_models_tested_on_other_targets_are_not_compared() -> None:
    for name in OTHERS:
        one = simulated(name, patients=30)
        targets = one.targets.copy()
        targets[4, 0] = 1 - targets[4, 0] if targets[4, 0] < 2 else 0
        other = replace(one, model=np.full(30, "b"), targets=targets)
        with pytest.raises(RunError, match=r"a and b were tested on .*different.* in fold 0"):
            compare_models(Predictions.concatenate([one, other]), draws=5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("regression", "r2"),
        ("regression", "rmse"),
        ("regression", "spearman"),
        ("two numbers", "mae"),
        ("corn", "kappa"),
        ("corn", "auc_above_mid"),
        ("multilabel", "auc"),
        ("multilabel", "auc_er"),
        ("multilabel", "f1"),
    ],
)
@pytest.mark.parametrize(("patients", "folds"), [(16, 2), (60, 3)])
def test_equally_good_models_seldom_differ_significantly(
    name: str, metric: str, patients: int, folds: int
) -> None:
    claims, defined, datasets = 0, 0, choose_count(300, sample=50)
    for seed in range(datasets):
        table = simulated(name, seed, models="ab", patients=patients, folds=folds)
        found = collect_fold_results(table)
        p = permutation_test(found["a"], found["b"], metric, draws=499)
        defined += p is not None
        claims += p is not None and p < 0.05
    assert defined > 0.8 * datasets
    assert claims / defined < 0.05 + 3 * math.sqrt(0.05 * 0.95 / datasets)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression", "multilabel"])
def test_models_on_different_scales_seldom_differ_significantly(name: str) -> None:
    metric = {"regression": "spearman", "multilabel": "auc_er"}[name]
    claims = 0
    for seed in range(200):
        table = simulated(name, seed, models="ab", folds=3, scales={"b": 3.0})
        found = collect_fold_results(table)
        p = permutation_test(found["a"], found["b"], metric, draws=499)
        claims += p is not None and p < 0.05
    assert claims / 200 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


# --- reports -------------------------------------------------------------------------------------

PLOTS = {
    "regression": {"scatter", "residuals"},
    "two numbers": {"scatter", "residuals"},
    "corn": {"confusion"},
    "coral": {"confusion"},
    "multilabel": {"label_roc"},
    "survival": {"kaplan_meier", "auc_over_time", "survival_calibration"},
    "cox": {"kaplan_meier", "auc_over_time", "survival_calibration"},
}


@pytest.mark.parametrize(
    "name", mostly_slow(OTHERS, "regression", "corn", "multilabel", "survival")
)
def test_a_report_has_the_plots_and_tables_of_its_task(tmp_path: Path, name: str) -> None:
    write_predictions(
        tmp_path / PREDICTIONS_FILE, simulated(name, models="ab", folds=2, patients=30)
    )
    found = evaluate(tmp_path, draws=20)
    page = found.write_report(tmp_path / "report").read_text(encoding="utf-8")
    plots = {file.stem for file in (tmp_path / "report/plots").iterdir()}
    assert PLOTS[name] <= plots <= PLOTS[name] | {"ranks"}
    task = TASKS[name]
    for metric in task.default_metrics:
        assert task.get_metric(metric).title in html.unescape(page)
    has_labels = task.kind == "multilabel"
    assert ("Labels" in page) == has_labels
    assert (tmp_path / "report/labels.csv").is_file() == has_labels
    if has_labels:
        assert (tmp_path / "report/labels.csv").read_text().count("\n") == 1 + 3 * 2 * 3
        assert all(f">{label}<" in page for label in task.target_columns)
    assert ("misclassified" in page.lower()) == (task.kind == "ordinal")
    assert found.comparison_problem == ""
    frame = found.to_frame()
    assert frame["metric"].unique().tolist() == list(task.default_metrics)


EVIL = "<script>$\\frac$ x_$"


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(Regression(EVIL), marks=pytest.mark.slow),
        Regression((EVIL, "$", "ä_$b$")),
        pytest.param(Ordinal((EVIL, "mid", "$\\x$")), marks=pytest.mark.slow),
        MultiLabel((EVIL, "=1+1", "_hidden")),
    ],
)
def test_no_name_harms_a_report(tmp_path: Path, task: Task) -> None:
    table = simulate(task, np.random.default_rng(0), models="ab", patients=30, folds=2)
    write_predictions(tmp_path / PREDICTIONS_FILE, table)
    page = (
        evaluate(tmp_path, draws=20).write_report(tmp_path / "report").read_text(encoding="utf-8")
    )
    assert "<script>$" not in page
    in_plots_only = task.kind == "regression" and task.outputs == 1
    assert ("&lt;script&gt;" in page) != in_plots_only


def make_numbers(truth: np.ndarray, **values: np.ndarray) -> Predictions:
    """Predictions of ki67 for a patient each, in two folds."""
    number = list(range(len(truth)))
    rows = [
        (f"s{n}", f"p{n}", "test", n % 2, 0, model, float(truth[n]))
        for model in values
        for n in number
    ]
    found = np.concatenate(list(values.values()))[:, None]
    return Predictions.from_rows(TASKS["regression"].card, rows, found)


def test_metrics_with_a_unit_have_significant_digits() -> None:
    truth = np.linspace(0, 1, 20)
    for scale, shown in ((1e5, "10000"), (1e-4, "0.00001000")):
        table = make_numbers(scale * truth, a=scale * (truth + 0.1))
        estimates = summarize(table, metrics=["mae", "r2"], draws=20)
        style = TableStyle(percent=True, spread="none")
        made = summary_table(estimates, style=style)
        assert [cell.text for cell in made.rows[0]][1:] == [shown, "89.1"]
        for layout in ("text", "markdown", "latex"):
            assert shown in render_table(made, layout)
        assert shown in fold_table(estimates, "mae", table).rows[0][1].text


def test_of_two_useless_models_none_is_praised() -> None:
    random = np.random.default_rng(0)
    truth = random.normal(20, 5, 40)
    useless = {"a": truth.mean() + random.normal(0, 9, 40), "b": 100 - truth}
    end = "; neither is better than predicting the mean for everyone."
    for values in (useless, useless | {"b": truth + 1}):
        pairs = compare_models(make_numbers(truth, **values), draws=200)
        (sentence,) = list_conclusions(pairs)
        assert "better than" in sentence
        assert sentence.endswith(end) == (values is useless)
    assert pairs[0].remark == ""
    absolute = compare_models(make_numbers(truth, **useless), metric="mae", draws=200)
    assert absolute[0].remark == "", "an error says nothing of usefulness by itself"


def test_plots_of_numbers_say_what_is_drawn() -> None:
    truth = np.arange(10.0)
    table = make_numbers(truth, a=truth / 2)
    (axes,) = draw_residuals(table).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted ki67", "predicted − true")
    drawn = np.asarray(axes.collections[0].get_offsets())
    found = sorted(map(tuple, drawn.tolist()))
    np.testing.assert_allclose(found, np.stack([truth / 2, -truth / 2], axis=1))
    note = "R² is of all folds together; tables have the mean over folds"
    assert draw_scatter(table).get_supxlabel() == note
    assert draw_scatter(table.select(table.fold == 0)).get_supxlabel() == ""


@pytest.mark.parametrize(("name", "noun"), [("corn", "level"), ("classification", "class")])
def test_a_matrix_of_levels_is_not_called_one_of_classes(name: str, noun: str) -> None:
    table = predicted() if name == "classification" else simulated(name, models="ab")
    figure = draw_confusion(table)
    assert (figure.get_supylabel(), figure.get_supxlabel()) == (f"true {noun}", f"predicted {noun}")
    assert misclassified_table(table).header[1:3] == (f"true {noun}", f"predicted {noun}")


def test_labels_without_both_values_have_no_curve_and_the_others_a_legend() -> None:
    table = simulated("multilabel", models="ab")
    for constant, with_legend in (([], [0]), ([0], [1]), ([0, 1], [2]), ([0, 1, 2], [])):
        targets = table.targets.copy()
        targets[:, constant] = 1.0
        panels = draw_label_roc(replace(table, targets=targets)).axes
        assert [n for n, axes in enumerate(panels) if axes.get_legend() is not None] == with_legend
        curves = [len(axes.lines) - 1 for axes in panels]  # besides the diagonal
        assert curves == [0 if label in constant else 2 for label in range(3)]


def test_huge_and_equal_numbers_are_drawn(tmp_path: Path) -> None:
    rows = [(f"s{n}", f"p{n}", "test", 0, 0, "m", y) for n, y in enumerate([1e12, -1e12, 5.0])]
    for number, values in enumerate(([[1e12], [0.0], [1.0]], [[7.0]] * 3)):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_predictions(
            folder / PREDICTIONS_FILE, Predictions.from_rows(TASKS["regression"].card, rows, values)
        )
        found = evaluate(folder, draws=20, metrics="all")
        assert found.write_report(folder / "report").is_file()
        assert math.isnan(found.estimates["m"]["pearson"].mean) == (number == 1)
