"""Limits how often a token can be guessed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

_MAX_PER_CLIENT = 10
_MAX_TOTAL = 200
_WINDOW_S = 60.0


class GuessLimit:
    """Counts wrong tokens by client, and resets the counts every minute.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = float("-inf")
        self._wrong: Counter[str] = Counter()  # at most _MAX_TOTAL entries

    def is_allowed(self, client: str) -> bool:
        """Whether a token of this client may be checked."""
        if self._clock() >= self._end:
            self._end = self._clock() + _WINDOW_S
            self._wrong.clear()
        return self._wrong[client] < _MAX_PER_CLIENT and self._wrong.total() < _MAX_TOTAL

    def count_wrong_token(self, client: str) -> None:
        """Count a wrong token of a client."""
        self._wrong[client] += 1
