"""How hard should the synthetic tasks be? Settings, widths of features, and numbers of slides.

A task tells variants apart where the best of them is far above chance and below its ceiling. Where
places decide, the label shows only in products of features of neighbours: how many slides it takes
to see it grows with the width of the features, whatever the model. What comes out goes into
``_tasks``, and so into every other study.

Run: python -m benchmarks.accuracy.difficulty --device cuda --workers 16
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.accuracy import _study
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import options_of
from benchmarks.accuracy._study import Request
from benchmarks.accuracy._tasks import recipe, synthetic

NAME = "difficulty"
STEPS = 6_400
"""Of training, for every job: with fewer slides there are more epochs."""
SHAPES = ((16, 400), (64, 400), (64, 1_200), (16, 200))
"""Width of features, and slides to train on."""

APART, MIXED = [[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.2], [0.4, 0.8]]
"""How much of the tumour is clustered, by class."""
OUT_OR_IN, ENTERED = [[0.0, 0.0], [1.0, 1.0]], [[0.1, 0.4], [0.6, 0.9]]
"""How many of the immune cells have entered the tumour, by class."""

Setting = dict[str, Any]


def _cluster(contrast: float, density: float, clusteredness: Any, clusters: int = 5) -> Setting:
    return {
        "contrast": contrast,
        "density": density,
        "clusteredness": clusteredness,
        "clusters": clusters,
    }


def _margin(contrast: float, stray: float, infiltration: Any) -> Setting:
    return {"contrast": contrast, "stray": stray, "infiltration": infiltration}


def _metastasis(contrast: float) -> Setting:
    return {"contrast": contrast, "lesion_share": [0.005, 0.03], "likeness": 0.8}


def _subtype(contrast: float) -> Setting:
    return {"contrast": contrast, "own": 5.0, "other": 2.0}


GRID: dict[str, dict[str, Setting]] = {
    "cluster": {
        "mixed, contrast 4": _cluster(4.0, 0.8, MIXED),
        "apart, contrast 4": _cluster(4.0, 0.9, APART, clusters=3),
        "mixed, contrast 3": _cluster(3.0, 0.5, MIXED),
    },
    "margin": {
        "entered, contrast 4": _margin(4.0, 0.0, ENTERED),
        "out or in, contrast 4": _margin(4.0, 0.0, OUT_OR_IN),
        "entered, contrast 3": _margin(3.0, 0.2, ENTERED),
    },
    "metastasis": {"contrast 3": _metastasis(3.0), "contrast 2.5": _metastasis(2.5)},
    "subtype": {"contrast 2": _subtype(2.0)},
}
"""What is not said is the task's own default."""

MODELS: dict[str, tuple[str, dict[str, Any], float]] = {
    "sac_mil": ("sac_mil", {}, 5e-4),
    "sac_mil position=none": ("sac_mil", {"position": "none"}, 5e-4),
    "transmil": ("transmil", {}, 1e-4),
    "mean_pool": ("mean_pool", {}, 5e-4),
    "abmil_gated": ("abmil_gated", {}, 5e-4),
}
"""With options and a learning rate each."""


def jobs(request: Request) -> Sequence[Job]:
    """Every shape of every setting; what cannot see places only where places do not decide."""
    return [
        _job(request, variant, task, told, shape)
        for shape in SHAPES
        for turn in range(max(map(len, GRID.values())))
        for task, held in GRID.items()
        for told in list(held)[turn : turn + 1]
        for variant in _models(task, shape)
    ]


def _models(task: str, shape: tuple[int, int]) -> list[str]:
    if task not in ("cluster", "margin"):
        return list(MODELS) if shape == SHAPES[0] else []
    return list(MODELS)[: 3 if shape == SHAPES[0] else 2]


def _job(request: Request, variant: str, task: str, told: str, shape: tuple[int, int]) -> Job:
    dim, train = shape
    small = request.size.epochs is not None
    size = request.size if small else replace(request.size, dim=dim, train=train)
    model, options, rate = MODELS[variant]
    return Job(
        study=NAME,
        task=f"{task}: {told}, {dim}-d, {train} slides",
        variant=variant,
        model=model,
        options={**options_of(model, request.size), **options},
        source=synthetic(task, request.seeds(1)[0], size, GRID[task][told]),
        training=recipe(size, lr=rate, epochs=STEPS // train),
    )


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
