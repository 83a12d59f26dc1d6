"""Study 2, the slowest models once more where places decide: two further seeds.

suite_slowest.py had one. The settings it chose hold, so there is nothing to develop; its figures
and these are three seeds together.

Run: python -m benchmarks.accuracy.suite_slowest_more --device cuda --workers 6 --confirm
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.accuracy import _study, suite, suite_slowest
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._study import Request

NAME = "suite_slowest_more"
FRESH = (24, 25)
"""The seeds that confirm: 10 to 23 belong to other studies."""


def jobs(request: Request) -> Sequence[Job]:
    """Those of suite_slowest, with other seeds; none in development."""
    if not request.confirm:
        return []
    asked = suite_slowest.shorter(request, NAME, suite_slowest.MODELS, suite_slowest.TASKS, FRESH)
    return suite.jobs_of(request, replace(asked, tuned_in=suite_slowest.NAME))


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "", developed=suite_slowest.NAME)
