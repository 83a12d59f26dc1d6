"""How much the slow tests try: a sample, or all of it with SACMIL_EXHAUSTIVE=1."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

EXHAUSTIVE = os.environ.get("SACMIL_EXHAUSTIVE") == "1"


def choose_count(every: int, *, sample: int) -> int:
    """Return how many cases to try."""
    return every if EXHAUSTIVE else sample


def choose_cases(cases: Sequence[T], *, step: int) -> Sequence[T]:
    """Return the cases to try: all, or one in so many, the last among them."""
    return cases if EXHAUSTIVE else cases[::-step][::-1]


def mostly_slow(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """All cases; only those that are named here run in the default suite, the rest are slow."""
    listed = [case if isinstance(case, tuple) else (case,) for case in cases]
    named = [case if isinstance(case, tuple) else (case,) for case in quick]
    assert all(case in listed for case in named)
    return [pytest.param(*case, marks=() if case in named else pytest.mark.slow) for case in listed]
