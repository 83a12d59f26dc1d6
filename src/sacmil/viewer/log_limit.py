"""Limits how much the server logs: anyone who can connect can cause log lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

_LOGGERS = ("asyncio", "uvicorn.error")
_MAX_RECORDS = 20
_WINDOW_S = 60.0


class LogLimit(logging.Filter):
    """Passes a number of records in each time window, and counts the others.

    Args:
        max_records: in each window.
        window_s: its length in seconds.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        max_records: int = _MAX_RECORDS,
        window_s: float = _WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._max_records, self._window_s, self._clock = max_records, window_s, clock
        self._end = float("-inf")
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written; the first of a window states how many were left out."""
        left_out = 0
        if self._clock() >= self._end:
            left_out = max(self._count - self._max_records, 0)
            self._end, self._count = self._clock() + self._window_s, 0
        self._count += 1
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out:,} more left out)", None
        return self._count <= self._max_records


def limit_log() -> None:
    """Limit the log records of the server and its event loop."""
    limit = LogLimit()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(limit)
