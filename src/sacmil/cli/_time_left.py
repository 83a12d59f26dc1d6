"""Estimate of the time left of a long task."""

from __future__ import annotations

import time

_MIN_ELAPSED_S = 10.0
"""Seconds before the first estimate; an earlier one would be a guess."""


class TimeLeft:
    """Estimates by the mean rate since the first call, which may be that of a resumed task."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._first: float | None = None

    def format_time_left(self, done: float, total: float) -> str:
        """Return text such as "about 3 min left", or "" if it is too early or nothing is left.

        Args:
            done: amount that is done.
            total: whole amount.
        """
        now = time.monotonic()
        if self._first is None:
            self._begun, self._first = now, done
        elapsed, steps = now - self._begun, done - self._first
        if elapsed < _MIN_ELAPSED_S or steps <= 0 or done >= total:
            return ""
        return f"about {format_duration(elapsed / steps * (total - done))} left"


def format_duration(seconds: float) -> str:
    """Format a number of seconds in a readable unit.

    >>> format_duration(42), format_duration(180), format_duration(8000)
    ('42 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
