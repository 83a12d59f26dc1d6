"""How long work reports: one callback for every command and function."""

from __future__ import annotations

from typing import Protocol


class ProgressCallback(Protocol):
    """Called as work goes on."""

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None:
        """Report progress.

        Args:
            task: what is being done.
            done: how much of it is finished.
            total: how much there is.
            note: the newest value, such as a loss.
        """


def ignore_progress(task: str, done: int, total: int, note: str = "") -> None:
    """Report nothing: the default of every ``on_progress``."""
