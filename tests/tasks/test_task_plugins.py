"""A task of another package works wherever those of this package do, and spoils nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pandas
import pytest
from small_models import make_bag
from target_cohort import make_trial
from torch import Tensor

from sacmil import load_model, predict
from sacmil.cohorts.cohort import read_cohort, write_cohort
from sacmil.deploy.export import export_model
from sacmil.deploy.runtime import load_runtime
from sacmil.errors import CohortError, ModelFolderError, OptionError
from sacmil.evaluation.comparison import compare_models
from sacmil.metrics.metric import Floats, Metric
from sacmil.metrics.regression import weighted_mae
from sacmil.plugins import Plugin
from sacmil.results import PREDICTIONS_FILE, Predictions, read_predictions, write_predictions
from sacmil.tasks import (
    Choice,
    HasValues,
    Regression,
    Summary,
    Task,
    _registry,
    from_card,
    list_tasks,
    make_task,
    register_task,
)
from sacmil.workflows.evaluate import evaluate


def _compute_mae(targets: Floats, rates: Floats, weights: Floats) -> Floats:
    return weighted_mae(targets[:, 0], rates[:, 0], weights)


@dataclass(frozen=True)
class Counts(Task):
    """Counts by Poisson regression: as little as a task can be."""

    kind: ClassVar[str] = "counts"
    outputs: ClassVar[int] = 1
    prediction_columns: ClassVar[tuple[str, ...]] = ("rate",)
    are_probabilities: ClassVar[bool] = False
    headline: ClassVar[str] = "mae"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "mae": Metric("Mean error", _compute_mae, lower_is_better=True)
    }

    targets: str
    mean: float = 1.0

    @property
    def target_columns(self) -> tuple[str, ...]:
        return (self.targets,)

    @property
    def score_names(self) -> tuple[str, ...]:
        return (self.targets,)

    @property
    def settings(self) -> dict[str, Any]:
        return {"targets": self.targets, "mean": self.mean}

    def read(self, rows: pandas.DataFrame) -> Floats:
        cells = rows[self.targets].str.strip()
        wrong = cells[~cells.str.fullmatch(r"\d+(\.0)?")]
        if len(wrong):
            raise CohortError("table", [f"{cell!r} in {line}" for line, cell in wrong.items()])
        return cells.to_numpy(dtype=np.float64)[:, None]

    def fitted(self, targets: Floats, *, label_smoothing: float, class_weights: str) -> Counts:
        return replace(self, mean=float(targets.mean()))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        from torch.nn.functional import poisson_nll_loss

        rates = outputs[:, 0] + math.log(self.mean)
        return poisson_nll_loss(rates, targets[:, 0], reduction="none")

    def activate(self, outputs: Tensor) -> Tensor:
        return outputs.float().exp() * self.mean

    def validation_loss(self, targets: Floats, predictions: Floats) -> float:
        return float((predictions - targets * np.log(predictions)).mean())

    def describe(self, prediction: HasValues) -> Summary:
        rate = float(prediction.values[0])
        return Summary(f"{rate:.1f}", f"{rate:.1f}", (Choice(self.targets, rate),), 0)


@dataclass(frozen=True)
class FalseRegression(Counts):
    """Has the name of another task."""

    kind: ClassVar[str] = "regression"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """The classes of entry points are looked up once in a process."""
    yield
    _registry._get_classes.cache_clear()
    _registry._REGISTERED.clear()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point to a module of two tasks, one of them with a name that is taken."""
    module = ModuleType("lab_plugin.counts")
    vars(module).update(Counts=Counts, FalseRegression=FalseRegression, Task=Task, helper=5)
    plugins = {"tasks": (Plugin("counts", module, "lab-plugin 1.2"),)}
    monkeypatch.setattr(_registry, "load_plugins", lambda kind: plugins.get(kind, ()))
    _registry._get_classes.cache_clear()


COUNTS = np.arange(24)[:, None] % 7 + 1.0


@pytest.mark.usefixtures("installed")
def test_it_is_listed_and_made_and_replaces_no_task() -> None:
    known = ["classification", "counts", "multilabel", "ordinal", "regression", "survival"]
    assert list_tasks() == known
    assert make_task("counts", targets="mitoses") == Counts("mitoses")
    assert from_card(Counts("mitoses", 3.5).card) == Counts("mitoses", 3.5)
    assert type(make_task("regression", targets="ki67")) is Regression
    with pytest.raises(OptionError, match="settings of the task counts are"):
        make_task("counts", targets="mitoses", nosuch=1)


def test_an_entry_point_may_name_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin("counts", Counts, "lab-plugin 1.2")
    monkeypatch.setattr(_registry, "load_plugins", lambda kind: (plugin,))
    _registry._get_classes.cache_clear()
    assert "counts" in list_tasks()


def test_a_task_is_registered_in_python() -> None:
    assert "counts" not in list_tasks()
    assert register_task(Counts) is Counts
    assert make_task("counts", targets="mitoses") == Counts("mitoses")
    with pytest.raises(OptionError, match="there is a task 'regression' already"):
        register_task(FalseRegression)


@pytest.mark.usefixtures("installed")
def test_it_reads_a_table_and_lists_its_problems(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("slide,patient,mitoses\na,1,5\nb,2,7\nc,2,7\n")
    cohort = read_cohort(table, task="counts", targets="mitoses")
    assert (cohort.task, [slide.label for slide in cohort.slides]) == (
        Counts("mitoses"),
        [(5.0,), (7.0,), (7.0,)],
    )
    write_cohort(tmp_path / "again.csv", cohort)
    assert read_cohort(tmp_path / "again.csv", task=Counts("mitoses")) == cohort
    table.write_text("slide,patient,mitoses\na,1,5\nb,2,many\nb,2,-1\n")
    with pytest.raises(CohortError) as raised:
        read_cohort(table, task="counts", targets="mitoses")
    assert raised.value.problems == [
        "slide 'b' occurs 2 times (line 3, line 4); keep one row",
        "'many' in line 3",
        "'-1' in line 4",
    ]


@pytest.mark.usefixtures("installed", "onnx_registry")
def test_it_is_trained_saved_evaluated_and_exported(tmp_path: Path) -> None:
    trial = make_trial(Counts("mitoses"), targets=COUNTS)
    found = trial.run(tmp_path / "run", monitor="val_metric", epochs=8, lr=3e-2)
    fold = trial.folds[0]
    seen = np.array([slide.targets for slide in trial.cohort.get_slides(fold.train)])
    model = load_model(tmp_path / "run")
    assert model.known_task == Counts("mitoses", seen.mean())
    assert found.task == Counts("mitoses").card
    evaluation = evaluate(tmp_path / "run", draws=20)
    assert evaluation.estimates["mean_pool"]["mae"].mean < 2
    page = evaluation.write_report(tmp_path / "report").read_text(encoding="utf-8")
    assert "Mean error" in page
    exported = export_model(tmp_path / "run", tmp_path / "exported", sizes=[3])
    bag = make_bag(8)
    runtime = load_runtime(exported, threads=1)
    np.testing.assert_allclose(runtime.predict(bag).values, predict(model, bag).values, rtol=1e-5)


@pytest.mark.usefixtures("installed")
def test_models_of_it_are_compared(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [
        (f"s{n}", f"p{n}", "test", n % 2, 0, model, float(COUNTS[n, 0]))
        for model in "ab"
        for n in range(24)
    ]
    noise = np.where(np.arange(48) < 24, 0.1, 4.0)
    values = np.tile(COUNTS[:, 0], 2) + noise * random.normal(size=48)
    table = Predictions.from_rows(Counts("mitoses").card, rows, values)
    write_predictions(tmp_path / PREDICTIONS_FILE, table)
    (pair,) = compare_models(read_predictions(tmp_path), draws=50)
    assert (pair.title, pair.lower_is_better) == ("Mean error", True)
    assert pair.difference < 0
    assert pair.p_permutation is not None
    assert pair.p_permutation < 0.01


def test_without_its_package_a_sentence_names_what_is_missing(
    tmp_path: Path, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_trial(Counts("mitoses"), targets=COUNTS).run(tmp_path / "run", epochs=1)
    monkeypatch.undo()
    _registry._get_classes.cache_clear()
    calls: tuple[Callable[[], object], ...] = (
        lambda: evaluate(tmp_path / "run").estimates,
        lambda: load_model(tmp_path / "run"),
    )
    for call in calls:
        with pytest.raises((OptionError, ModelFolderError), match="there is no task 'counts'"):
            call()
