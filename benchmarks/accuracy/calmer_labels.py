"""Study 10, a third round: as long as ever, but labels are not taken for certain.

Training less (calmer.py, calmer_longer.py) makes models less sure of what they get wrong, and now
and then a run is over before it has learnt margins. Here nothing is shortened: a tenth or a fifth
of the labels counts as drawn at random (``label_smoothing``). Development only: it lost what scores
say of IDC's slides, so that nothing was left to confirm.

Run: python -m benchmarks.accuracy.calmer_labels --device cuda --workers 16 --features FOLDER \\
    --outlines FILE
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.accuracy import _study
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._study import Request
from benchmarks.accuracy.calmer import by_recipes
from benchmarks.accuracy.larger import Fresh

NAME = "calmer_labels"
CHANGES: Mapping[str, dict[str, Any]] = {
    "standard": {},
    "smoothing 0.1": {"label_smoothing": 0.1},
    "smoothing 0.2": {"label_smoothing": 0.2},
}
SEEDS = 3
"""Of development."""


def jobs(request: Request) -> Sequence[Job]:
    """As in the first round, with other changes and more seeds."""
    if request.confirm:
        return []
    return by_recipes(request, NAME, CHANGES, Fresh((), ()), developed=SEEDS)


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
