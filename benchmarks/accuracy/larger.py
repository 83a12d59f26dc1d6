"""Study 9: what `sacmil train` should take: which preset, and how large its blocks should start.

Both presets as they are and with first weights twice as large (study 8), and gated AB-MIL, by
`standard`, untuned, as for somebody who types no option: on the five tasks of study 2 (slides of
5,000 instances), on nests and margins of 200 short slides, and on COLON, BREAST and IDC. Study 7
and study 8 are its development.

Said before it is run: of the four that are presets, the one with the best mean rank over the ten
tasks, of those that are worse than ``sac_mil_local`` on none (p < 0.05 by the bootstrap, after Holm
over the variants of a task), becomes what is taken where no model is asked for.

Run: python -m benchmarks.accuracy.larger --device cuda --workers 16 --features FOLDER \\
    --outlines FILE --confirm
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.accuracy import _study, few, recipes, suite, suite_slowest
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import LARGER, PRESETS, options_of
from benchmarks.accuracy._study import Request
from benchmarks.accuracy._tasks import real

NAME = "larger"


class Fresh(NamedTuple):
    """What a study is confirmed on, and no other looks at."""

    seeds: Sequence[int]
    """Of synthetic cohorts."""
    repeats: Sequence[int]
    """Of cross-validation."""


FRESH = Fresh((21, 22, 23), (10, 11))


def jobs(request: Request) -> Sequence[Job]:
    """Every variant on every task."""
    training = recipes.fields_of("standard", request)
    return [
        replace(job, training=training)
        for named in _variants(request)
        for job in on_ten_tasks(request, named, FRESH)
    ]


def _variants(request: Request) -> Iterator[Mapping[str, Any]]:
    for model in (*PRESETS, "abmil_gated"):
        options = options_of(model, request.size)
        yield {"study": NAME, "variant": model, "model": model, "options": options}
        if model in PRESETS:
            larger = {**options, **LARGER}
            yield {"study": NAME, "variant": f"{model}, start 2", "model": model, "options": larger}


def on_ten_tasks(
    request: Request, named: Mapping[str, Any], fresh: Fresh, *, developed: int = 1
) -> Iterator[Job]:
    """Jobs of a variant; development sees so many synthetic seeds, and the first repeat."""
    seeds = fresh.seeds if request.confirm else request.seeds(developed)
    yield from _synthetic(request, named, seeds)
    yield from _real(request, named, fresh.repeats if request.confirm else request.repeats)


def _synthetic(request: Request, named: Mapping[str, Any], seeds: Sequence[int]) -> Iterator[Job]:
    long = suite.longer(request.size, *suite_slowest.LENGTHS)
    short = suite.fewer(request.size, {"train": few.TUNING})
    for seed in seeds:
        for task in suite.TASKS:
            yield suite.job_of(named, task, seed, long)
        for task in few.TASKS:
            job = suite.job_of(named, task, seed, short)
            yield replace(job, task=f"{task}, {few.TUNING} slides")


def _real(request: Request, named: Mapping[str, Any], repeats: Sequence[int]) -> Iterator[Job]:
    for task, split in recipes.folds(request, repeats):
        source = real(task, "lite0", request.features)
        seed = int(split["repeat"])
        yield Job(**named, task=task, source=source, split=recipes.for_training(split), seed=seed)


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
