"""Study 2, second round: both presets, the best rival of the first and AB-MIL, on fresh cohorts.

The first round (suite.py) was confirmed before sac_mil_twice was made, and kept the first of
equally good epochs. Models of this round are tuned and trained by the same code, so they are
compared with each other alone.

Run: python -m benchmarks.accuracy.suite_second --device cuda --workers 12 --outlines FILE
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.accuracy import _study, suite
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import everyone
from benchmarks.accuracy._study import Request

NAME = "suite_second"
MODELS = ("sac_mil_twice", "sac_mil_local", "r2t", "abmil_gated")
FRESH = range(13, 16)
"""Seeds that confirm: 10 to 12 have been looked at."""


def jobs(request: Request) -> Sequence[Job]:
    """As in the first round."""
    models = everyone(request.size)
    seeds = FRESH if request.confirm else request.seeds(suite.DEVELOPMENT_SEEDS)
    asked = {name: models[name] for name in MODELS}
    return suite.jobs_of(request, suite.Round(study=NAME, models=asked, seeds=seeds))


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
