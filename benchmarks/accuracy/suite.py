"""Study 2: the synthetic suite. Every registered model, bags of 5,000 to 50,000 instances.

Four tasks, and task 1 again with lesions shaped like real ones (``--outlines``); three seeds.
Each model is tuned on the short cohort of seed 0 (1,000 to 4,000 instances, eight settings, inner
validation), then trained on the long ones.

Run: python -m benchmarks.accuracy.suite --device cuda --workers 8 --outlines FILE
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.accuracy import _study
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import everyone
from benchmarks.accuracy._study import DEVELOPED, Request
from benchmarks.accuracy._tasks import SETTINGS, Size, recipe, synthetic
from benchmarks.accuracy._tuning import tuned

NAME = "suite"
SEEDS = 3
EPOCHS = 8
SLIDES = {"train": 400, "val": 60, "test": 120}
"""Long bags take their time: fewer of them, and shorter training, than in the other studies."""
SHAPED = "metastasis outlines"
TASKS = (*SETTINGS, SHAPED)


def jobs(request: Request) -> Sequence[Job]:
    """Tuning first; a model's long runs once it is tuned."""
    found = [job for task in TASKS for job in _of_task(request, task)]
    return sorted(found, key=lambda job: (job.role == "run", job.seed))


def _of_task(request: Request, task: str) -> Iterator[Job]:
    for model, options in everyone(request.size).items():
        first = _job(request, task, model, options, DEVELOPED, shorter(request.size))
        yield from tuned(request, first, _long(request, first))


def _long(request: Request, first: Job) -> Any:
    def others(fields: Mapping[str, Any]) -> Iterator[Job]:
        for seed in request.seeds(SEEDS):
            job = _job(request, first.task, first.model, first.options, seed, longer(request.size))
            yield replace(job, training={**job.training, **fields})

    return others


def shorter(size: Size) -> Size:
    """Fewer slides, unless there are few already."""
    return replace(
        size, **{part: min(count, getattr(size, part)) for part, count in SLIDES.items()}
    )


def longer(size: Size) -> Size:
    """Five to fifty thousand instances; in proportion where the study is tiny."""
    return replace(shorter(size), few=5 * size.few, many=25 * size.many // 2)


def _job(
    request: Request, task: str, model: str, options: Mapping[str, Any], seed: int, size: Size
) -> Job:
    source = synthetic(task.split()[0], seed, size, outlines=task == SHAPED)
    return Job(
        study=NAME,
        task=task,
        variant=model,
        model=model,
        options=options,
        source=source,
        seed=seed,
        training=recipe(request.size, epochs=EPOCHS),
    )


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
