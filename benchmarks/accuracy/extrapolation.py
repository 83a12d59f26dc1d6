"""Study 5: length extrapolation. Trained on short bags, tested on bags up to sixteen times longer.

SAC-MIL with each kind of position, all else as in study 1's LOCAL, since from the paper's settings
nothing is learnt that could carry over where places decide; PROPE also with a lambda of 1. Cells
stand as densely on long slides as on short ones; lesions grow with the slide.

Run: python -m benchmarks.accuracy.extrapolation --device cuda --workers 16
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.accuracy import _study
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._study import Request
from benchmarks.accuracy._tasks import SETTINGS, Size, recipe, synthetic
from benchmarks.accuracy.inside import LOCAL

NAME = "extrapolation"
SEEDS = 3
POSITIONS: Mapping[str, Mapping[str, Any]] = {
    **{
        f"position={position}": {"position": position}
        for position in ("prope", "none", "sinusoidal", "alibi", "rope", "rope2d", "peg", "ppeg")
    },
    "position=prope, lambda 1": {"position": "prope", "scale": 1.0},
}
TIMES = (2, 4, 8, 16)


def jobs(request: Request) -> Sequence[Job]:
    """Every position on every task and seed."""
    return [
        Job(
            study=NAME,
            task=task,
            variant=variant,
            model="sac_mil",
            options={**LOCAL, **(request.size.options or {}), **options},
            source=synthetic(task, seed, request.size, further=longer(request.size)),
            seed=seed,
            training=recipe(request.size),
        )
        for seed in request.seeds(SEEDS)
        for task in SETTINGS
        for variant, options in POSITIONS.items()
    ]


def longer(size: Size) -> list[tuple[str, int, int, int]]:
    """Pieces to be tested on besides: half as many slides as at the length of training."""
    return [(f"x{n}", size.test // 2, n * size.few, n * size.many) for n in TIMES]


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
