"""Study 2 for models that were made after it had been confirmed, on the cohorts of the others.

They are tuned like all others; the seeds that confirm were looked at with other models, never with
these.

Run: python -m benchmarks.accuracy.suite_later --device cuda --workers 8 --outlines FILE
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.accuracy import _study, suite
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import LATER, everyone
from benchmarks.accuracy._study import Request

NAME = "suite_later"


def jobs(request: Request) -> Sequence[Job]:
    """As in study 2."""
    models = everyone(request.size)
    return suite.jobs_of(request, {name: models[name] for name in LATER})


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
