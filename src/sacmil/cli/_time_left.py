"""Time left of a long task, estimated once there is enough to estimate from."""

from __future__ import annotations

import time

_FIRST_S = 10.0
"""Before that many seconds an estimate would be a guess."""


class TimeLeft:
    """Estimates by the mean rate since the first step, which may be that of a resumed task."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._first: float | None = None

    def words(self, done: float, total: float) -> str:
        """Such as "about 3 min left"; empty where it is too early to say, or nothing is left.

        Args:
            done: how much is done.
            total: of how much.
        """
        now = time.monotonic()
        if self._first is None:
            self._begun, self._first = now, done
        elapsed, steps = now - self._begun, done - self._first
        if elapsed < _FIRST_S or steps <= 0 or done >= total:
            return ""
        return f"about {duration(elapsed / steps * (total - done))} left"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(42), duration(180), duration(8000)
    ('42 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
