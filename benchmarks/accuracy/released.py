"""Study 11: every model as somebody who types no option trains it.

`standard` as it is released, untuned, the last weights, the same for all; on the ten tasks of study
9, the slowest models on COLON, BREAST and IDC alone. Nothing is chosen by it, so that there is
nothing to develop.

Run: python -m benchmarks.accuracy.released --device cuda --workers 16 --features FOLDER \\
    --outlines FILE --confirm
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from benchmarks.accuracy import _study, recipes
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import SLOWEST, everyone, in_order
from benchmarks.accuracy._study import Request
from benchmarks.accuracy.larger import Fresh, on_ten_tasks
from sacmil.models import Recipe
from sacmil.models._recipe import STANDARD

NAME = "released"
FRESH = Fresh((37, 38, 39), (18, 19))


def jobs(request: Request) -> Sequence[Job]:
    """Every model on every task it is not too slow for; none in development."""
    return in_order(_all(request)) if request.confirm else []


def _all(request: Request) -> Iterator[Job]:
    training = _asked(STANDARD) | recipes.shortened(request)
    for model, options in everyone(request.size).items():
        named = {"study": NAME, "variant": model, "model": model, "options": options}
        for job in on_ten_tasks(request, named, FRESH):
            if model not in SLOWEST or job.source["kind"] != "synthetic":
                yield replace(job, training=training)


def _asked(recipe: Recipe) -> Mapping[str, Any]:
    """What a recipe asks for, beyond what any does."""
    named = {field.name: getattr(recipe, field.name) for field in fields(recipe)}
    return {name: value for name, value in named.items() if value != getattr(Recipe(), name)}


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
