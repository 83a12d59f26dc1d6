"""Threads and processes of the server: the event loop stays free, and no slide can crash it."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from sacmil.errors import SacMILError, SlideError
from sacmil.parallel.local import WorkerPool
from sacmil.viewer.allowed_paths import AllowedPath

ResultT = TypeVar("ResultT")

_MAX_AT_ONCE = 4
"""Threads of a queue, and processes that read slides."""
_MAX_WAITING = 2000
"""A screen shows some 40 tiles, so no reader needs more at once."""
_POLL_S = 0.5
_MAX_BYTES = 4 * 2**30
"""Address space of each process, including its libraries."""
_TIMEOUT_S = 30.0


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

    def __init__(self, threads: int | None = None, max_waiting: int = _MAX_WAITING) -> None:
        self._threads = ThreadPoolExecutor(threads or _count_at_once(), "viewer")
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


class SlideProcesses:
    """A few processes, started when first needed; thread-safe.

    Args:
        count: number of processes; further calls wait.
        limit_s: seconds a call may take.
    """

    def __init__(self, count: int | None = None, *, limit_s: float = _TIMEOUT_S) -> None:
        count = count or _count_at_once()
        self._workers = [WorkerPool(1, memory_limit=_MAX_BYTES) for _ in range(count)]
        # the last one used comes first: it has the slide open
        self._idle: queue.LifoQueue[WorkerPool] = queue.LifoQueue()
        for workers in self._workers:
            self._idle.put(workers)
        self._limit_s = limit_s
        self._crashed: dict[AllowedPath, str] = {}

    def call(
        self, read: Callable[..., ResultT], allowed_path: AllowedPath, *arguments: Any
    ) -> ResultT:
        """Return the result of a function that reads a file, or raise a SlideError.

        Args:
            read: its first argument is the path.
            allowed_path: of the file; one that killed its process is not opened again.
            arguments: further arguments of the function.
        """
        if allowed_path in self._crashed:
            raise SlideError(self._crashed[allowed_path])
        workers = self._idle.get()
        try:
            call = (_catch_errors, read, allowed_path, *arguments)
            workers.submit(None, *call, limit_s=self._limit_s)
            outcome = workers.next_outcome()
        finally:
            self._idle.put(workers)
        if outcome is None or outcome.failure is not None:
            reason = outcome.failure if outcome else "there was no result"
            self._crashed[allowed_path] = f"{allowed_path.path.name}: cannot be shown, {reason}"
            raise SlideError(self._crashed[allowed_path])
        if isinstance(outcome.value, _ReadFailure):
            raise SlideError(outcome.value.message)
        result: ResultT = outcome.value
        return result

    def interrupt(self) -> None:
        """Kill the processes; their current calls fail."""
        for workers in self._workers:
            workers.kill()

    def close(self) -> None:
        """End the processes; no further calls are allowed."""
        for workers in self._workers:
            workers.__exit__()


class _ReadFailure(NamedTuple):
    message: str


def _catch_errors(
    read: Callable[..., ResultT], allowed_path: AllowedPath, *arguments: Any
) -> ResultT | _ReadFailure:
    """Run a function in a process, and return why it failed: a raised error would end it."""
    try:
        return read(allowed_path, *arguments)
    except SacMILError as error:
        return _ReadFailure(str(error))
    except OSError as error:
        return _ReadFailure(f"{allowed_path.path.name}: cannot be read ({error.strerror or error})")


def _count_at_once() -> int:
    return min(_MAX_AT_ONCE, os.cpu_count() or 1)
