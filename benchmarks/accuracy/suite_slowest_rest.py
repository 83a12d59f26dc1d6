"""Study 2, the slowest models on the other tasks: lesions, drawn and of real shapes, and mixtures.

As suite_slowest does, on slides of 5,000 instances and a fresh cohort of each task; gated AB-MIL,
which sees lesions, stands in TransMIL's place, which learns none in ten epochs.

Run: python -m benchmarks.accuracy.suite_slowest_rest --device cuda --workers 12 --outlines FILE
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.accuracy import _study, suite
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import SLOWEST
from benchmarks.accuracy._study import Request
from benchmarks.accuracy.suite_slowest import TASKS as DONE
from benchmarks.accuracy.suite_slowest import shorter

NAME = "suite_slowest_rest"
MODELS = ("sac_mil_twice", "sac_mil_local", "r2t", "abmil_gated", *SLOWEST)
TASKS = tuple(task for task in suite.TASKS if task not in DONE)
FRESH = (17,)


def jobs(request: Request) -> Sequence[Job]:
    """As in the other rounds, but fewer and shorter."""
    return suite.jobs_of(request, shorter(request, NAME, MODELS, TASKS, FRESH))


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
