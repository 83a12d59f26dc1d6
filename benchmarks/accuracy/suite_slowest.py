"""Study 2, the slowest models: whether one of them sees places where others do not.

Three of them read coordinates, which no rival of the first round does. At 20,000 instances a run of
theirs takes up to 20 minutes, so slides have 5,000 here, the tasks are the two where only places
decide, and settings are tried on fewer of the short slides. Both presets, and the rivals that saw
something of places in the first round, are trained beside them, by the same rules. Development only
tunes; one fresh cohort of each task confirms.

Run: python -m benchmarks.accuracy.suite_slowest --device cuda --workers 12 --outlines FILE
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.accuracy import _study, suite
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import SLOWEST, everyone
from benchmarks.accuracy._study import Request

NAME = "suite_slowest"
MODELS = ("sac_mil_twice", "sac_mil_local", "r2t", "transmil", *SLOWEST)
TASKS = ("cluster", "margin")
LENGTHS = 5_000, 5_000
FRESH = (16,)
"""The seed that confirms: 10 to 15 belong to the other rounds."""


def jobs(request: Request) -> Sequence[Job]:
    """As in the other rounds, but fewer and shorter."""
    return suite.jobs_of(request, shorter(request, NAME, MODELS, TASKS, FRESH))


def shorter(
    request: Request, study: str, names: Sequence[str], tasks: Sequence[str], fresh: Sequence[int]
) -> suite.Round:
    """A round that the slowest models can do; fresh are the seeds that confirm."""
    models = everyone(request.size)
    return suite.Round(
        study=study,
        models={name: models[name] for name in names},
        seeds=fresh if request.confirm else (),
        tasks=tasks,
        lengths=LENGTHS,
        tuning={"train": 200},
        tuning_epochs=4,
    )


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
