"""Study 2: the synthetic suite. All models but the slowest, bags of 5,000 to 50,000 instances.

Four tasks, and task 1 again with lesions shaped like real ones (``--outlines``); one seed in
development, three fresh ones in the confirmatory run. Each model is tuned on a short cohort of seed
0 (400 to 1,200 instances, eight settings, inner validation; lesions of real shapes take what was
chosen for drawn ones), then trained on long ones.

Run: python -m benchmarks.accuracy.suite --device cuda --workers 8 --outlines FILE
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.accuracy import _study
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import all_but_slowest, in_order
from benchmarks.accuracy._study import DEVELOPED, Request
from benchmarks.accuracy._tasks import SETTINGS, Size, recipe, synthetic
from benchmarks.accuracy._tuning import tuned

NAME = "suite"
SEEDS, DEVELOPMENT_SEEDS = 3, 1
EPOCHS = 10
SLIDES = {"train": 300, "val": 40, "test": 120}
"""Long bags take their time, and tell more each: fewer of them than in the other studies."""
TUNING_SLIDES, TUNING_EPOCHS = {"train": 400}, 6
OUTLINES = " outlines"
TASKS = (*SETTINGS, f"metastasis{OUTLINES}")
LATER = ("sac_mil_twice",)
"""Made after this study had been confirmed: suite_second has them."""


def jobs(request: Request) -> Sequence[Job]:
    """A model's long runs once it is tuned."""
    models = all_but_slowest(request.size)
    asked = {name: models[name] for name in models if name not in LATER}
    return jobs_of(request, asked, request.seeds(SEEDS if request.confirm else DEVELOPMENT_SEEDS))


def jobs_of(
    request: Request, models: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]
) -> Sequence[Job]:
    """Those of some models, given with their options, on the cohorts of some seeds."""
    return in_order(job for task in TASKS for job in _of_task(request, models, seeds, task))


def _of_task(
    request: Request, models: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], task: str
) -> Iterator[Job]:
    drawn = task.removesuffix(OUTLINES)
    for model, options in models.items():
        short = fewer(request.size, TUNING_SLIDES)
        first = _job(request, drawn, model, options, DEVELOPED, short, TUNING_EPOCHS)
        yield from tuned(request, first, _long(request, seeds, task, first))


def _long(request: Request, seeds: Sequence[int], task: str, first: Job) -> Any:
    def others(fields: Mapping[str, Any]) -> Iterator[Job]:
        for seed in seeds:
            size = longer(request.size)
            job = _job(request, task, first.model, first.options, seed, size, EPOCHS)
            yield replace(job, training={**job.training, **fields})

    return others


def fewer(size: Size, slides: Mapping[str, int]) -> Size:
    """Fewer slides, unless there are few already."""
    return replace(
        size, **{part: min(count, getattr(size, part)) for part, count in slides.items()}
    )


def longer(size: Size) -> Size:
    """Five to fifty thousand instances; in proportion where the study is tiny."""
    tiny = size.epochs is not None
    few, many = (5 * size.few, 12 * size.many) if tiny else (5_000, 50_000)
    return replace(fewer(size, SLIDES), few=few, many=many)


def _job(
    request: Request,
    task: str,
    model: str,
    options: Mapping[str, Any],
    seed: int,
    size: Size,
    epochs: int,
) -> Job:
    drawn = task.removesuffix(OUTLINES)
    return Job(
        study=NAME,
        task=task,
        variant=model,
        model=model,
        options=options,
        source=synthetic(drawn, seed, size, outlines=task != drawn),
        seed=seed,
        training=recipe(request.size, epochs=epochs),
    )


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
