"""Study 2: the synthetic suite. All models but the slowest, bags of 5,000 to 50,000 instances.

Four tasks, and task 1 again with lesions shaped like real ones (``--outlines``); one seed in
development, three fresh ones in the confirmatory run. Each model is tuned on a short cohort of seed
0 (400 to 1,200 instances, eight settings, inner validation; lesions of real shapes take what was
chosen for drawn ones), then trained on long ones.

Run: python -m benchmarks.accuracy.suite --device cuda --workers 8 --outlines FILE
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
LENGTHS = 5_000, 50_000
"""Fewest and most instances."""
OUTLINES = " outlines"
TASKS = (*SETTINGS, f"metastasis{OUTLINES}")
LATER = ("sac_mil_twice",)
"""Made after this study had been confirmed: suite_second has them."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """Who is compared on long slides, and on which."""

    study: str
    tuned_in: str = ""
    """The study whose settings hold, where it is another."""
    models: Mapping[str, Mapping[str, Any]]
    """With the options of their constructors."""
    seeds: Sequence[int]
    """Of the cohorts."""
    tasks: Sequence[str] = TASKS
    lengths: tuple[int, int] = LENGTHS
    tuning: Mapping[str, int] = field(default_factory=lambda: {"train": 400})
    """Slides of the short cohort that settings are tried on."""
    tuning_epochs: int = 6


def jobs(request: Request) -> Sequence[Job]:
    """A model's long runs once it is tuned."""
    models = all_but_slowest(request.size)
    asked = {name: models[name] for name in models if name not in LATER}
    seeds = request.seeds(SEEDS if request.confirm else DEVELOPMENT_SEEDS)
    return jobs_of(request, Round(study=NAME, models=asked, seeds=seeds))


def jobs_of(request: Request, asked: Round) -> Sequence[Job]:
    """Those of a round, on every task of it."""
    return in_order(job for task in asked.tasks for job in _of_task(request, asked, task))


def _of_task(request: Request, asked: Round, task: str) -> Iterator[Job]:
    short = fewer(request.size, asked.tuning)
    for model, options in asked.models.items():
        named = {"study": asked.study, "variant": model, "model": model, "options": options}
        drawn = job_of(named, task.removesuffix(OUTLINES), DEVELOPED, short)
        training = recipe(request.size, epochs=asked.tuning_epochs)
        first = replace(drawn, training=training, study=asked.tuned_in or asked.study)
        yield from tuned(request, first, _long(request, asked, named, task))


def _long(request: Request, asked: Round, named: Mapping[str, Any], task: str) -> Any:
    size = longer(request.size, *asked.lengths)

    def others(fields: Mapping[str, Any]) -> Iterator[Job]:
        training = {**recipe(request.size, epochs=EPOCHS), **fields}
        for seed in asked.seeds:
            yield replace(job_of(named, task, seed, size), training=training)

    return others


def fewer(size: Size, slides: Mapping[str, int]) -> Size:
    """Fewer slides, unless there are few already."""
    return replace(
        size, **{part: min(count, getattr(size, part)) for part, count in slides.items()}
    )


def longer(size: Size, few: int, many: int) -> Size:
    """Long slides, and fewer; in proportion where the study is tiny."""
    if size.epochs is not None:
        few, many = 5 * size.few, 12 * size.many
    return replace(fewer(size, SLIDES), few=few, many=many)


def job_of(named: Mapping[str, Any], task: str, seed: int, size: Size) -> Job:
    """A model on a cohort of long or short slides, its recipe not yet said."""
    drawn = task.removesuffix(OUTLINES)
    source = synthetic(drawn, seed, size, outlines=task != drawn)
    return Job(**named, task=task, source=source, seed=seed)


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
