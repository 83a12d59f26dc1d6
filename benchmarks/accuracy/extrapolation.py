"""Study 5: length extrapolation. Trained on short bags, tested on bags up to sixteen times longer.

SAC-MIL with each kind of position, on the two tasks where places decide. Cells stand as densely on
long slides as on short ones; lesions grow with the slide.

Run: python -m benchmarks.accuracy.extrapolation --device cuda --workers 16
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.accuracy import _study
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._study import Request
from benchmarks.accuracy._tasks import Size, recipe, synthetic

NAME = "extrapolation"
SEEDS = 3
TASKS = ("cluster", "margin")
POSITIONS = ("prope", "none", "sinusoidal", "alibi", "rope", "rope2d", "peg", "ppeg")
TIMES = (2, 4, 8, 16)


def jobs(request: Request) -> Sequence[Job]:
    """Every position on every task and seed."""
    return [
        Job(
            study=NAME,
            task=task,
            variant=f"position={position}",
            model="sac_mil",
            options={**(request.size.options or {}), "position": position},
            source=synthetic(task, seed, request.size, further=longer(request.size)),
            seed=seed,
            training=recipe(request.size),
        )
        for seed in request.seeds(SEEDS)
        for task in TASKS
        for position in POSITIONS
    ]


def longer(size: Size) -> list[tuple[str, int, int, int]]:
    """Pieces to be tested on besides: half as many slides as at the length of training."""
    return [(f"x{n}", size.test // 2, n * size.few, n * size.many) for n in TIMES]


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
