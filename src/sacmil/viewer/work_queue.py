"""A bounded queue of work for a few threads, so that the event loop stays free."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ResultT = TypeVar("ResultT")

MAX_WAITING = 2000
"""A screen shows some 40 tiles, so no reader needs more at once."""
_POLL_S = 0.5


class QueueFullError(Exception):
    """Too much work is waiting."""


class ClientGoneError(Exception):
    """The client has disconnected."""


class WorkQueue:
    """Runs work in a few threads.

    Args:
        threads: how many calls run at once.
        max_waiting: limit of waiting and running calls.
    """

    def __init__(self, threads: int | None = None, max_waiting: int = MAX_WAITING) -> None:
        self._threads = ThreadPoolExecutor(threads or min(4, os.cpu_count() or 1), "viewer")
        self._max_waiting = max_waiting
        self._waiting = 0

    async def run(
        self, work: Callable[[], ResultT], is_disconnected: Callable[[], Awaitable[bool]]
    ) -> ResultT:
        """Return the result of some work; it is not started after the client has disconnected.

        Args:
            work: runs in a thread.
            is_disconnected: whether the browser has disconnected, as it does for invisible tiles.
        """
        if self._waiting >= self._max_waiting:
            raise QueueFullError
        self._waiting += 1
        try:
            job = self._threads.submit(work)
            future = asyncio.wrap_future(job)
            while not (await asyncio.wait({future}, timeout=_POLL_S))[0]:
                if await is_disconnected() and job.cancel():
                    raise ClientGoneError
            return future.result()
        finally:
            self._waiting -= 1

    def stop(self) -> None:
        """Start no more work; running work continues."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Start no more work, and wait for running work."""
        self._threads.shutdown(cancel_futures=True)
