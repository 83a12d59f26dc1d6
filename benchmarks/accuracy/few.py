"""Study 8: how many slides it takes to see places.

Nests and margins again, where three models have an AUC of 1.00 on 300 long slides: here on 100, 200
or 400 short ones (400 to 1,200 instances), 2,000 steps each, as `standard` gives few slides at
least. Settings are tried on 200 slides of seed 0 and hold for all three numbers. Presets are also
tried with blocks that start larger; rows with a pace are of an option that lost, and is gone. The
slowest are tuned, and run only to confirm.

Run: python -m benchmarks.accuracy.few --device cuda --workers 16
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.accuracy import _study
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import LARGER, PRESETS, SLOWEST, in_order, options_of
from benchmarks.accuracy._study import DEVELOPED, Request
from benchmarks.accuracy._tasks import recipe, synthetic
from benchmarks.accuracy._tuning import tuned
from benchmarks.accuracy.suite import fewer

NAME = "few"
TASKS = ("cluster", "margin")
SLIDES, TUNING = (100, 200, 400), 200
STEPS = 2_000
SEEDS = 3
FRESH = (18, 19, 20)
"""The seeds that confirm: 10 to 17 belong to study 2."""
MODELS = (*PRESETS, "r2t", "transmil", "mambamil", "mammil")


def jobs(request: Request) -> Sequence[Job]:
    """Every model on every number of slides, once it is tuned."""
    return in_order(
        job for task in TASKS for named in _models(request) for job in _of(request, named, task)
    )


def _of(request: Request, named: Mapping[str, Any], task: str) -> Iterator[Job]:
    def runs(fields: Mapping[str, Any]) -> Iterator[Job]:
        for seed in FRESH if request.confirm else _developed(request, named):
            for slides in SLIDES:
                job = _job(request, named, task, slides, seed)
                yield replace(job, training={**job.training, **fields})

    return tuned(request, _job(request, named, task, TUNING, DEVELOPED), runs)


def _developed(request: Request, named: Mapping[str, Any]) -> Sequence[int]:
    return () if named["model"] in SLOWEST else request.seeds(SEEDS)


def _models(request: Request) -> Iterator[Mapping[str, Any]]:
    """Variant, model and options."""
    for model in MODELS:
        yield {"variant": model, "model": model, "options": options_of(model, request.size)}
    for model in PRESETS:
        own = {**options_of(model, request.size), **LARGER}
        yield {"variant": f"{model}, start 2", "model": model, "options": own}


def _job(request: Request, named: Mapping[str, Any], task: str, slides: int, seed: int) -> Job:
    return Job(
        **named,
        study=NAME,
        task=f"{task}, {slides} slides",
        source=synthetic(task, seed, fewer(request.size, {"train": slides})),
        seed=seed,
        training=recipe(request.size, epochs=STEPS // slides),
    )


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
