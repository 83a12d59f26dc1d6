"""Which slides train, which choose the epoch, and which are tested on."""

from __future__ import annotations

from typing import NamedTuple


class Fold(NamedTuple):
    """One division of a cohort, by slide id."""

    train: tuple[str, ...]
    val: tuple[str, ...]
    """The inner validation part: chooses the epoch; a recipe that chooses none trains on it."""
    test: tuple[str, ...]
    """Read once, after everything has been chosen."""
