"""Cohorts on disk whose targets are numbers, levels or several labels."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from small_cohort import Material

from sacmil import Bag, write_bag
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.splits import Fold, make_folds
from sacmil.errors import CohortWarning
from sacmil.results import Predictions, read_predictions
from sacmil.tasks import Classification, MultiLabel, Ordinal, Regression, Survival, Task
from sacmil.training.config import TrainingConfig
from sacmil.training.job import DeviceConfig, TrainingBag, TrainingJob, run_job

LEVELS = ("low", "mid", "high")
_TIMES: dict[str, Any] = {"horizons": (10,), "curve_times": (5, 10, 20, 40)}
TASKS: dict[str, Task] = {
    "classification": Classification(("benign", "malignant")),
    "regression": Regression("ki67"),
    "two numbers": Regression(("ki67", "til")),
    "corn": Ordinal(LEVELS, "grade"),
    "coral": Ordinal(LEVELS, "grade", "coral"),
    "multilabel": MultiLabel(("er", "pr", "her2")),
    "survival": Survival("months", "death", bins=2, unit="months", **_TIMES),
    "cox": Survival("months", "death", "cox", unit="months", **_TIMES),
}
"""One or more of every kind."""
OTHERS = tuple(name for name in TASKS if name != "classification")

Floats = npt.NDArray[np.float64]


def draw_targets(task: Task, rows: int, random: np.random.Generator) -> Floats:
    """Targets (rows, T) with every value; one label in five is unknown, but none of the first."""
    if task.kind == "regression":
        return random.normal(20, 5, (rows, task.outputs))
    if isinstance(task, Survival):  # two of three have the event
        times = np.minimum(np.round(random.exponential(12, rows) + 0.5, 1), 40)
        return np.stack([times, random.permutation(np.arange(rows) % 3 > 0)], axis=1) * 1.0
    if isinstance(task, MultiLabel):
        found = random.permuted(np.arange(rows)[:, None] + [0, 1, 0] >= rows / 2, axis=0) * 1.0
        found[:, 1:][random.random((rows, 2)) < 0.2] = np.nan
        return found
    return random.permutation(np.arange(rows) % len(task.levels))[:, None].astype(float)


def make_cohort(task: Task, targets: Floats, *, slides: int = 1) -> Cohort:
    """Patient i has the targets of row i."""
    made = [
        LabeledSlide(f"s{i}-{part}", f"p{i}", int(row[0]) if task.levels else tuple(row.tolist()))
        for i, row in enumerate(targets)
        for part in range(slides)
    ]
    return Cohort(tuple(made), task=task)


def make_small_folds(cohort: Cohort, folds: int) -> list[Fold]:
    """Folds of so few patients that a training set may lack a finding."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CohortWarning)
        return make_folds(cohort, folds)


def write_targets(
    folder: Path,
    task: Task,
    *,
    patients: int = 12,
    slides: int = 1,
    dim: int = 6,
    instances: int = 8,
    signal: float = 1.0,
    folds: int = 2,
    seed: int = 0,
) -> Material:
    """Bags whose mean feature is the targets, on the scale of their own spread, plus noise."""
    random = np.random.default_rng(seed)
    targets = draw_targets(task, patients, random)
    cohort = make_cohort(task, targets, slides=slides)
    scaled = np.nan_to_num((targets - np.nanmean(targets, 0)) / np.nanstd(targets, 0))
    bags = {}
    folder.mkdir(parents=True, exist_ok=True)
    for number, slide in enumerate(cohort.slides):
        cells = random.permutation(36)[:instances]
        coords = np.stack(np.divmod(cells, 6), 1) * 256
        features = random.standard_normal((instances, dim))
        features[:, : targets.shape[1]] += signal * scaled[number // slides]
        bags[slide.slide_id] = folder / f"{slide.slide_id}.h5"
        write_bag(
            bags[slide.slide_id], Bag(slide.slide_id, features.astype(np.float32), coords, 256, 0.5)
        )
    return Material(cohort, bags, make_small_folds(cohort, folds))


class Bags:
    """Bags in memory, read by the paths that ``make_job`` gives them."""

    def __init__(self, slide_ids: Iterable[str], targets: Floats, signal: float, seed: int) -> None:
        random = np.random.default_rng([seed, 1])
        scaled = np.nan_to_num((targets - np.nanmean(targets, 0)) / np.nanstd(targets, 0))
        self.by_id = dict(
            zip(slide_ids, (_draw_bag(row, signal, random) for row in scaled), strict=True)
        )

    def __call__(self, path: Path) -> Bag:
        return replace(self.by_id[path.name], slide_id=path.name)


def _draw_bag(scaled: Floats, signal: float, random: np.random.Generator) -> Bag:
    """Eight instances of six features; the mean of the first features is the target."""
    features = random.standard_normal((8, 6))
    features[:, : len(scaled)] += signal * scaled
    coords = np.stack(np.divmod(random.permutation(36)[:8], 6), 1) * 256
    return Bag("slide", features.astype(np.float32), coords, 256)


class Trial(NamedTuple):
    """A cohort with bags in memory."""

    cohort: Cohort
    bags: Bags
    folds: list[Fold]

    def make_job(
        self,
        folder: Path,
        *,
        fold: int = 0,
        model: str = "mean_pool",
        seed: int = 0,
        **training: Any,
    ) -> TrainingJob:
        """A job of a few epochs on one of the folds."""
        given = {"epochs": 3, "lr": 1e-2, "monitor": "last", **training}
        config = TrainingConfig(model=model, training=given, seed=seed)
        sets = (
            tuple(TrainingBag(slide, slide.slide_id, "0") for slide in self.cohort.get_slides(ids))
            for ids in self.folds[fold]
        )
        train, val, test = sets
        return TrainingJob(
            folder=folder,
            name=model,
            config=config,
            task=self.cohort.task,
            fold=fold,
            train=train,
            val=val,
            test=test,
        )

    def run(self, folder: Path, **given: Any) -> Predictions:
        """Train and test; the predictions of validation and test set."""
        run_job(self.make_job(folder, **given), IN_MEMORY, read=self.bags)
        return read_predictions(folder)


IN_MEMORY = DeviceConfig(cache="memory")


def make_trial(
    task: Task,
    *,
    patients: int = 24,
    signal: float = 1.0,
    seed: int = 0,
    targets: Floats | None = None,
    shown: Floats | None = None,
) -> Trial:
    """A cohort of one slide per patient in two folds.

    Args:
        task: what is predicted.
        patients: their number.
        signal: how much the features say about what is shown; 0 for nothing.
        seed: of targets and features.
        targets: of the patients; drawn if not given.
        shown: targets that the features are made of; those of the patients if not given.
    """
    given = (
        draw_targets(task, patients, np.random.default_rng(seed)) if targets is None else targets
    )
    cohort = make_cohort(task, given)
    bags = Bags(cohort.by_id, given if shown is None else shown, signal, seed)
    return Trial(cohort, bags, make_small_folds(cohort, 2))
