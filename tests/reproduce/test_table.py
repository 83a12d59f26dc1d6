"""A reproduced table: trained, resumed and described."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sacmil.errors import RunError, SacMILError
from sacmil.reproduce import _table
from sacmil.reproduce._paper import TABLES, Variant, make_table
from sacmil.reproduce._table import reproduce_table
from sacmil.reproduce.experiments import DatasetPaths, ReproduceRequest, SyntheticSettings
from sacmil.results import PREDICTIONS_FILE, Predictions, write_predictions
from sacmil.results.run import Run

QUICK = ReproduceRequest(
    synthetic=SyntheticSettings(slides=8, instances=(20, 30)), folds=2, epochs=1, devices=("cpu",)
)
PAPER = make_table(
    "A table",
    "resnet50",
    "One | 90_1 91_1 92_1\nTwo | 80_1 81_1 82_1",
    (),
    {"One": Variant("mean_pool"), "Two": Variant("max_pool")},
)


class Engine:
    """Stands for cross_validate: returns at once, and stores its arguments."""

    def __init__(self, missing: set[tuple[str, int]] = frozenset()) -> None:
        self.missing = missing
        self.calls = []

    def __call__(self, dataset, configs, *, out, folds, seeds, devices, on_progress, **_):
        self.calls.append((out, configs, seeds, devices))
        if on_progress:
            on_progress("epochs", 0, 4, "loss 0.7")
        rows, values = [], []
        for seed in [*seeds, 99]:  # runs of other seeds lie in the same folder
            for number, fold in enumerate(folds):
                for name in [*configs, "of_another_table"]:
                    if (name, number) in self.missing:
                        continue
                    for slide in dataset.cohort.get_slides(fold.test):
                        key = (slide.slide_id, slide.patient_id, "test", number, seed, name)
                        rows.append((*key, slide.label))
                        right = seed != 99 and name != "max_pool"
                        values.append(np.eye(2)[slide.label if right else 1 - slide.label])
        failures = {f"{name}, fold {fold}": "it broke" for name, fold in self.missing}
        out.mkdir(parents=True, exist_ok=True)
        (out / "provenance.json").touch()
        if rows:
            made = Predictions.from_rows(dataset.cohort.classes, rows, values)
            write_predictions(out / PREDICTIONS_FILE, made)
        return Run(out, failures)


@pytest.fixture
def engine(monkeypatch) -> Engine:
    made = Engine()
    monkeypatch.setattr(_table, "cross_validate", made)
    return made


def ran(out: Path, request: ReproduceRequest = QUICK) -> dict[tuple[str, str], dict[str, str]]:
    list(reproduce_table(out, "a", PAPER, request))
    return read(out)


def read(out: Path) -> dict[tuple[str, str], dict[str, str]]:
    with (out / "a.csv").open(encoding="utf-8") as file:
        return {(row["row"], row["metric"]): row for row in csv.DictReader(file)}


@pytest.mark.usefixtures("engine")
def test_each_row_has_the_figures_of_its_own_runs(tmp_path) -> None:
    table = ran(tmp_path)
    assert float(table["One", "auc"]["ours_mean"]) == 100
    assert float(table["Two", "auc"]["ours_mean"]) == 0
    assert table["Two", "f1"]["paper_mean"] == "82.0"


@pytest.mark.usefixtures("engine")
def test_a_dataset_that_is_not_requested_is_not_shown(tmp_path) -> None:
    request = replace(QUICK, only=("tcga-brca",))
    text, *_ = reproduce_table(tmp_path, "a", TABLES["positions"], request)
    shown = text.read_text(encoding="utf-8").splitlines()
    assert "TCGA-BRCA" in shown
    assert not {"CAMELYON-16", "TCGA-LUNG"} & set(shown)


@pytest.mark.usefixtures("engine")
def test_the_caption_says_what_ours_was_measured_on(tmp_path) -> None:
    about = ran(tmp_path, replace(QUICK, seeds=3))["One", "auc"]["about"]
    for fact in (
        "after 1 epoch:",
        "8 slides",
        "2 folds, 3 seeds",
        "a synthetic cohort, not CAMELYON-16 (task metastasis, medium, 20 to 30 instances",
        "Paper: means over five folds of the slides of CAMELYON-16, resnet50 features",
        "the data differ, so compare rows within a column",
    ):
        assert fact in about


def test_the_request_reaches_the_engine(tmp_path, engine) -> None:
    events = []
    request = replace(
        QUICK,
        seeds=2,
        devices=("cpu", "cuda:0"),
        workers=2,
        progress=lambda *line: events.append(line),
    )
    ran(tmp_path, request)
    ((out, configs, seeds, devices),) = engine.calls
    assert out.parent == tmp_path / "runs"
    assert list(seeds) == [0, 1]
    assert devices == ("cpu", "cuda:0") * 2
    assert {name: config.to_recipe().epochs for name, config in configs.items()} == {
        "mean_pool": 1,
        "max_pool": 1,
    }
    assert events[-1] == ("CAMELYON-16: epochs", 0, 4, "loss 0.7")


def test_the_paper_s_recipe_is_the_default(tmp_path, engine) -> None:
    ran(tmp_path, replace(QUICK, epochs=None))
    recipe = engine.calls[0][1]["mean_pool"].to_recipe()
    assert (recipe.optimizer, recipe.lr, recipe.epochs, recipe.monitor) == (
        "adam",
        1e-4,
        200,
        "last",
    )


def test_a_row_with_a_failed_fold_is_left_empty_and_reported(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(_table, "cross_validate", Engine(missing={("max_pool", 1)}))
    with pytest.raises(RunError, match=r"1 job failed.*\n.*max_pool, fold 1: it broke"):
        ran(tmp_path)
    table = read(tmp_path)
    assert table["Two", "auc"]["ours_mean"] == ""
    assert float(table["One", "auc"]["ours_mean"]) == 100


@pytest.mark.usefixtures("engine")
def test_a_call_that_is_refused_leaves_the_table_there_is(tmp_path) -> None:
    table = ran(tmp_path)
    nowhere = DatasetPaths(tmp_path / "no.csv", tmp_path / "no")
    with pytest.raises(SacMILError):
        ran(tmp_path, replace(QUICK, data={"camelyon16": nowhere}))
    assert read(tmp_path) == table


def test_a_table_of_which_nothing_came_out_is_still_written(tmp_path, monkeypatch) -> None:
    lost = {(name, fold) for name in ("mean_pool", "max_pool") for fold in (0, 1)}
    monkeypatch.setattr(_table, "cross_validate", Engine(missing=lost))
    with pytest.raises(RunError, match="4 jobs failed"):
        ran(tmp_path)
    assert "No row is finished" in read(tmp_path)["One", "auc"]["about"]


def test_trained_parts_are_used_again_and_by_other_tables(tmp_path) -> None:
    """The engine itself: the second table and the second run train nothing."""
    rows = {"SAC-MIL": Variant("sac_mil", dim=8, k=2), "Cycle-MLP": Variant("mean_pool")}
    tiny = replace(TABLES["correlations"], rows=rows)
    first = list(reproduce_table(tmp_path, "a", tiny, QUICK))
    cards = {card: card.stat().st_mtime_ns for card in tmp_path.glob("runs/*/*/*/*/card.json")}
    before = [path.read_bytes() for path in first]
    assert len(cards) == 2 * 2
    again = list(reproduce_table(tmp_path, "a", tiny, QUICK))
    other = replace(tiny, rows={"SAC-MIL": rows["SAC-MIL"]})
    list(reproduce_table(tmp_path, "b", other, QUICK))
    assert {card: card.stat().st_mtime_ns for card in cards} == cards
    assert [path.read_bytes() for path in again] == before
    assert "SAC-MIL" in (tmp_path / "b.txt").read_text(encoding="utf-8")
