"""Study 1: what matters inside SAC-MIL. One thing is changed at a time.

All that is not said to change is LOCAL: from the paper's own settings nothing is learnt where
places decide, so variants of it could not be told apart; they stand beside, some with one change
towards LOCAL. Four synthetic tasks of 400 to 1,200 instances, three seeds each, and windows of IDC,
four folds of slides. Every variant is trained alike; ``--only`` takes tasks or variants.

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
IDC_FOLDS, IDC_VALIDATION, IDC_EPOCHS = 4, 0.25, 10
"""Sixteen slides: four are tested on, three of the others choose the epoch."""


LOCAL: Mapping[str, Any] = {
    "dim": 256,
    "k": 16,
    "depth": 1,
    "position": "none",
    "centres": "peel",
}
"""Of sac_mil: what is changed one thing at a time."""


class Variant(NamedTuple):
    """SAC-MIL with something changed."""

    factor: str
    value: str
    options: Mapping[str, Any]
    arrangement: str = ""
    model: str = "sac_mil"

    @property
    def name(self) -> str:
        """As tables call it."""
        return f"{self.factor}={self.value}" if self.value else self.factor


def _each(factor: str, option: str, values: Sequence[Any]) -> list[Variant]:
    return [Variant(factor, str(value), {**LOCAL, option: value}) for value in values]


def _paper(value: str, **options: Any) -> Variant:
    return Variant("paper", value, options)


def _together(value: str, **options: Any) -> Variant:
    return Variant("together", value, {**LOCAL, **options})


def _hilbert(value: str, **options: Any) -> Variant:
    return _together(value, **{"k": 8, "position": "peg", "region_order": "hilbert", **options})


def _preset(value: str, **options: Any) -> Variant:
    return Variant("preset", value, options, model="sac_mil_local")


def _twice(value: str, **options: Any) -> Variant:
    return Variant("twice", value, options, model="sac_mil_twice")


VARIANTS = (
    Variant("local", "", LOCAL),
    _paper(""),
    *_each("pool", "pool", ["attention", "max"]),
    *_each("k", "k", (4, 8, 32, 64)),
    *_each("depth", "depth", (2, 3)),
    *_each(
        "position", "position", ["prope", "sinusoidal", "alibi", "rope", "rope2d", "peg", "ppeg"]
    ),
    *_each("arrangement", "centres", ["fps", "fps_free", "kd"]),
    Variant("arrangement", "raster", LOCAL, arrangement="raster"),
    Variant("arrangement", "random", LOCAL, arrangement="random"),
    Variant("arrangement", "peel hilbert", {**LOCAL, "region_order": "hilbert"}),
    Variant("arrangement", "kd hilbert", {**LOCAL, "centres": "kd", "region_order": "hilbert"}),
    *_each("correlation", "correlation", ["chordmixer", "cyclemlp", "nystrom", "attention"]),
    *_each("width", "dim", (128, 512)),
    _paper("no position", position="none"),
    _paper("depth 1", depth=1),
    _paper("k 16", k=16),
    _paper("no position, depth 1", position="none", depth=1),
    _paper("no position, depth 1, k 16", position="none", depth=1, k=16),
    *(
        Variant("lambda", str(scale), {**LOCAL, "position": "prope", "scale": float(scale)})
        for scale in (1, 32, 2048)
    ),
    _together("k 8, peg", k=8, position="peg"),
    _together("k 4, peg", k=4, position="peg"),
    _together("k 8, peg, width 512", k=8, position="peg", dim=512),
    _together("k 8, peg, attention", k=8, position="peg", pool="attention"),
    _together("k 8, peg, depth 2", k=8, position="peg", depth=2),
    _hilbert("k 8, peg, hilbert"),
    _hilbert("k 8, peg, hilbert, no block", depth=0),
    _hilbert("k 8, peg, hilbert, width 512", dim=512),
    _hilbert("k 8, peg, kd hilbert", centres="kd"),
    _hilbert("k 8, peg, hilbert, attention", pool="attention"),
    _preset(""),
    _preset("no block", depth=0),
    _preset("not from zero", zero_start=False),
    _preset("mean", pool="mean"),
    _preset("attention", pool="attention"),
    _preset("soft peg", position="soft_peg"),
    _preset("soft peg, no block", position="soft_peg", depth=0),
    _preset("soft peg, mean", position="soft_peg", pool="mean"),
    _preset("soft peg, attention", position="soft_peg", pool="attention"),
    _preset("peg, not from zero", position="peg", zero_start=False),
    _twice(""),
    _twice("mean", pool="mean"),
    _twice("attention", pool="attention"),
    _twice("no block", depth=0),
    _preset("start 2", start=2.0),
    *_each("residual", "residual", [False]),
    *_each("mlp", "mlp", ["mlp"]),
    *_each("tail", "tail", ["split"]),
)
"""Those that come first matter more; lambda is that of prope, 512 in the paper."""


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
        model=variant.model,
        options={**(request.size.options or {}), **variant.options},
        arrangement=variant.arrangement,
        source=source,
        split=split,
        seed=seed,
        training=recipe(request.size, **epochs),
    )


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
