"""Study 1: what matters inside SAC-MIL. One thing is changed at a time, all else is the paper's.

Four synthetic tasks of 1,000 to 4,000 instances, three seeds each, and windows of IDC, four folds
of slides. Every variant is trained alike; ``--only`` takes tasks or variants.

Run: python -m benchmarks.accuracy.inside --device cuda --workers 16 --features FOLDER
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.accuracy import _study
from benchmarks.accuracy._job import Job, Source, Split
from benchmarks.accuracy._study import Request
from benchmarks.accuracy._tasks import SETTINGS, real, recipe, synthetic

NAME = "inside"
SEEDS = 3
IDC_FOLDS, IDC_VALIDATION, IDC_EPOCHS = 4, 0.25, 20
"""Sixteen slides: four are tested on, three of the others choose the epoch."""


class Variant(NamedTuple):
    """SAC-MIL with one thing changed."""

    factor: str
    value: str
    options: Mapping[str, Any] = {}
    arrangement: str = ""

    @property
    def name(self) -> str:
        """As tables call it."""
        return f"{self.factor}={self.value}" if self.value else self.factor


def _each(factor: str, option: str, values: Sequence[Any]) -> list[Variant]:
    return [Variant(factor, str(value), {option: value}) for value in values]


VARIANTS = (
    Variant("default", ""),
    *_each(
        "position", "position", ["none", "sinusoidal", "alibi", "rope", "rope2d", "peg", "ppeg"]
    ),
    *_each("correlation", "correlation", ["chordmixer", "cyclemlp", "nystrom", "attention"]),
    Variant("arrangement", "raster", arrangement="raster"),
    Variant("arrangement", "random", arrangement="random"),
    *_each("arrangement", "centres", ["fps_free", "peel", "kd"]),
    Variant("arrangement", "fps hilbert", {"region_order": "hilbert"}),
    Variant("arrangement", "kd hilbert", {"centres": "kd", "region_order": "hilbert"}),
    *_each("pool", "pool", ["max", "attention"]),
    *_each("k", "k", (8, 16, 32, 128)),
    *_each("depth", "depth", (1, 2, 4)),
    *_each("lambda", "scale", (1.0, 32.0, 128.0, 2048.0)),
    Variant("residual", "no", {"residual": False}),
    *_each("mlp", "mlp", ("mlp",)),
    *_each("tail", "tail", ("split",)),
)
"""The default is prope, sac, fps in the order fps, mean, k 64, depth 3, lambda 512, residual."""


def jobs(request: Request) -> Sequence[Job]:
    """Every variant on every task: the first seed and fold of all tasks come first."""
    return [_job(request, variant, *case) for case in _cases(request) for variant in VARIANTS]


def _cases(request: Request) -> Iterator[tuple[str, Source, Split, int]]:
    """Task, source, split and seed, round by round."""
    seeds, folds = request.seeds(SEEDS), request.folds(IDC_FOLDS)
    for turn in range(max(len(seeds), len(folds))):
        if turn < len(seeds):
            for task in SETTINGS:
                yield task, synthetic(task, seeds[turn], request.size), {}, seeds[turn]
        if turn < len(folds):
            for repeat in request.repeats:
                yield "idc", real("idc", "lite0", request.features), idc_split(repeat, turn), repeat


def idc_split(repeat: int, fold: int) -> Split:
    """Slides of IDC dealt into folds."""
    return {"folds": IDC_FOLDS, "repeat": repeat, "fold": fold, "validation": IDC_VALIDATION}


def _job(
    request: Request, variant: Variant, task: str, source: Source, split: Split, seed: int
) -> Job:
    epochs = {"epochs": IDC_EPOCHS} if task == "idc" else {}
    return Job(
        study=NAME,
        task=task,
        variant=variant.name,
        model="sac_mil",
        options={**(request.size.options or {}), **variant.options},
        arrangement=variant.arrangement,
        source=source,
        split=split,
        seed=seed,
        training=recipe(request.size, **epochs),
    )


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
