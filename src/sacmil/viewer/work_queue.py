"""Threads that read slides and files while the server goes on answering, and a bounded queue."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ResultT = TypeVar("ResultT")

MAX_WAITING = 2000
"""A screen shows some 40 tiles; beyond this somebody asks who does not look."""
_POLL_S = 0.5


class QueueFullError(Exception):
    """More is waiting than will be done soon."""


class ClientGoneError(Exception):
    """Nobody waits for the answer any more."""


class WorkQueue:
    """Runs work in a few threads.

    Args:
        threads: how many pieces of work are done at once.
        max_waiting: pieces of work, those being done included.
    """

    def __init__(self, threads: int | None = None, max_waiting: int = MAX_WAITING) -> None:
        self._threads = ThreadPoolExecutor(threads or min(4, os.cpu_count() or 1), "viewer")
        self._max_waiting = max_waiting
        self._waiting = 0

    async def run(
        self, work: Callable[[], ResultT], is_disconnected: Callable[[], Awaitable[bool]]
    ) -> ResultT:
        """The result of some work, which is not begun once nobody waits for it.

        Args:
            work: what takes time.
            is_disconnected: whether the browser hung up, as it does for tiles out of sight.
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
        """Begin nothing more; what is under way goes on."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        self._threads.shutdown(cancel_futures=True)
