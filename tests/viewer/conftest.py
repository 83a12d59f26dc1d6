"""A results folder to look at, and an app over it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from results_maker import HOT, MPP, SIDE, SIZE, make_results, tile_scores
from slide_maker import tissue_pixels, write_slide

from sacmil.results import (
    InstanceScores,
    ModelInfo,
    Results,
    SlideResult,
    StoredPrediction,
    write_results,
    write_scores,
)
from sacmil.tasks import MultiLabel, Ordinal, Regression, Survival, Task
from sacmil.viewer.access import AllowedHosts
from sacmil.viewer.app import create_app
from sacmil.viewer.content import ResultsApi
from sacmil.viewer.workers import SlideProcesses, WorkQueue

TASKS: dict[str, tuple[Task, dict[str, tuple[str | None, tuple[float, ...]]]]] = {
    "regression": (
        Regression("ki67"),
        {
            "a": ("25", (23.14159,)),
            "b": ("4.5", (115.5,)),
            "c": ("100", (9.25,)),
            "d": (None, (-3,)),
        },
    ),
    "targets": (
        Regression(("ki67", "age")),
        {"a": (None, (23.14159, 61.5)), "b": (None, (115.5, 47.25)), "c": (None, (9.25, 70))},
    ),
    "ordinal": (
        Ordinal(("low", "mid", "high"), column="grade"),
        {
            "a": ("mid", (0.2, 0.5, 0.3, 1.1)),
            "b": ("low", (0.1, 0.1, 0.8, 1.7)),
            "c": ("low", (0.7, 0.2, 0.1, 0.4)),
        },
    ),
    "survival": (
        Survival("months", "death", unit="months", horizons=(12, 36), curve_times=(12, 24, 36, 48)),
        {
            "a": (None, (-1.2, 0.81, 0.82, 0.7, 0.55, 0.31)),
            "b": (None, (-3.4, 0.09, 0.97, 0.95, 0.91, 0.9)),
            "c": (None, (-2.1, 0.5, 0.9, 0.85, 0.8, 0.75)),
        },
    ),
    "multilabel": (
        MultiLabel(("er", "pr", "her2")),
        {
            "a": ("er", (0.81, 0.3, 0.6)),
            "b": ("er, pr", (0.2, 0.9, 0.1)),
            "c": ("none", (0.1, 0.2, 0.4)),
        },
    ),
}
"""A task of each kind, with the label and values of each slide."""


def signed_scores(columns: int) -> InstanceScores:
    """Scores by column: the hot tile of one model adds, that of the other takes away."""
    more, less = (tile_scores(model).scores for model in HOT)
    coords, signed = tile_scores("sac_mil").coords, more - np.float32(0.5) * less
    by_name = np.stack([signed * (-2) ** c for c in range(columns)], axis=1).astype(np.float32)
    return InstanceScores(coords, SIDE, by_name[:, 0], by_name if columns > 1 else None, 0)


def make_task_results(folder: Path, name: str) -> Path:
    """A results folder of a task: a model with signed scores, and an ensemble with attention."""
    task, slides = TASKS[name]
    (folder / "slides").mkdir(parents=True)
    write_slide(folder / "slides/a.tif", tissue_pixels(*SIZE, seed=3), mpp=MPP)
    count = len(task.score_names)
    attention = tile_scores("mean_pool")
    stored = {
        "one": signed_scores(count),
        "many": InstanceScores(attention.coords, SIDE, attention.scores),
    }
    for model, scores in stored.items():
        (folder / "scores" / model).mkdir(parents=True)
        for slide in slides:
            write_scores(folder / f"scores/{model}/{slide}.npz", scores)

    def predict(slide: str, model: str, values: tuple[float, ...]) -> StoredPrediction:
        several = tuple(0.01 * (column + 1) for column in range(len(values)))
        spread = several if model == "many" else None
        found = StoredPrediction(model, values, spread, f"scores/{model}/{slide}.npz")
        if model == "one" or task.get_curve(found) is None:
            return found
        members = tuple(tuple(share * value for value in values) for share in (0.9, 1.0, 1.05))
        return replace(found, members=members)

    listed = tuple(
        SlideResult(
            slide,
            tuple(predict(slide, model, values) for model in stored),
            label,
            f"slides/{slide}.tif",
            mpp=MPP,
            size=SIZE,
        )
        for slide, (label, values) in slides.items()
    )
    models = (ModelInfo("one", "0" * 64), ModelInfo("many", "1" * 64, members=3))
    write_results(folder, Results(task.value_names, models, listed, task.card))
    return folder


@pytest.fixture(scope="session")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the results folder of a task; made once each, not to be changed."""

    @cache
    def make(name: str) -> Path:
        return make_task_results(tmp_path_factory.mktemp("tasks") / name, name)

    return make


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once; not to be changed."""
    return make_results(tmp_path_factory.mktemp("made") / "results")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(made, tmp_path / "results"))


@pytest.fixture(scope="session")
def processes() -> Iterator[SlideProcesses]:
    """Started once: starting them takes longer than most tests."""
    made = SlideProcesses(2)
    yield made
    made.close()


@pytest.fixture
def make_app(tmp_path: Path, processes: SlideProcesses) -> Iterator[Callable[..., Any]]:
    """Makes an app over a folder, as ``sacmil view`` would."""
    queues = []

    def make(folder: Path, *slides: Path, host: str = "127.0.0.1", **options: Any) -> Any:
        cache = options.pop("cache", None)
        api = ResultsApi(
            folder, slides, processes=processes, document_processes=processes, cache=cache
        )
        queue = options.pop("queue", None) or WorkQueue(2)
        queues.extend([queue, document_queue := WorkQueue(2)])
        static = options.pop("static", tmp_path / "no page")
        hosts = AllowedHosts.from_address(host, 8765)
        return create_app(
            api, hosts, queue=queue, document_queue=document_queue, static=static, **options
        )

    yield make
    for queue in queues:
        queue.close()


@pytest.fixture
def app(made: Path, make_app: Callable[..., Any]) -> Any:
    """Over the folder that is not changed."""
    return make_app(made)
