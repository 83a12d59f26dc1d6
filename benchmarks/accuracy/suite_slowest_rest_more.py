"""Study 2, the slowest models once more on lesions and mixtures: two further seeds.

suite_slowest_rest.py had one. The settings it chose hold, so there is nothing to develop; its
figures and these are three seeds together.

Run: python -m benchmarks.accuracy.suite_slowest_rest_more --device cuda --workers 6 \\
    --outlines FILE --confirm
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.accuracy import _study, suite, suite_slowest, suite_slowest_rest
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._study import Request

NAME = "suite_slowest_rest_more"
FRESH = (26, 27)
"""The seeds that confirm: 10 to 25 belong to other studies."""


def jobs(request: Request) -> Sequence[Job]:
    """Those of suite_slowest_rest, with other seeds; none in development."""
    if not request.confirm:
        return []
    first = suite_slowest_rest
    asked = suite_slowest.shorter(request, NAME, first.MODELS, first.TASKS, FRESH)
    return suite.jobs_of(request, replace(asked, tuned_in=first.NAME))


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "", developed=suite_slowest_rest.NAME)
