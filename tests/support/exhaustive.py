"""How much the slow tests try: a sample, or all of it with SACMIL_EXHAUSTIVE=1."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

EXHAUSTIVE = os.environ.get("SACMIL_EXHAUSTIVE") == "1"


def choose_count(every: int, *, sample: int) -> int:
    """Return how many cases to try."""
    return every if EXHAUSTIVE else sample


def choose_cases(cases: Sequence[T], *, step: int) -> Sequence[T]:
    """Return the cases to try: all, or one in so many, the last among them."""
    return cases if EXHAUSTIVE else cases[::-step][::-1]
