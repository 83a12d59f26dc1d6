"""Processes that read slides, so that a damaged slide cannot crash the server."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from typing import Any, TypeVar

from sacmil.errors import SlideError
from sacmil.parallel.local import WorkerPool
from sacmil.viewer.allowed_paths import AllowedPath
from sacmil.viewer.slide_reading import ReadFailure

ResultT = TypeVar("ResultT")

MAX_PROCESSES = 4
_MAX_BYTES = 4 * 2**30
"""Address space of each process, including its libraries."""
_TIMEOUT_S = 30.0


class SlideProcesses:
    """A few processes, started when first needed; thread-safe.

    Args:
        count: number of processes; further calls wait.
        limit_s: seconds a tile may take.
    """

    def __init__(self, count: int | None = None, *, limit_s: float = _TIMEOUT_S) -> None:
        count = count or min(MAX_PROCESSES, os.cpu_count() or 1)
        self._workers = [WorkerPool(1, memory_limit=_MAX_BYTES) for _ in range(count)]
        # the last one used comes first: it has the slide open
        self._idle: queue.LifoQueue[WorkerPool] = queue.LifoQueue()
        for workers in self._workers:
            self._idle.put(workers)
        self._limit_s = limit_s
        self._crashed: dict[AllowedPath, str] = {}

    def call(
        self, read: Callable[..., ResultT | ReadFailure], allowed_path: AllowedPath, *arguments: Any
    ) -> ResultT:
        """Run a function of ``slide_reading`` and return its result, or raise a SlideError.

        Args:
            read: its first argument is the path.
            allowed_path: of the slide; one that killed its process is not opened again.
            arguments: further arguments of the function.
        """
        if allowed_path in self._crashed:
            raise SlideError(self._crashed[allowed_path])
        workers = self._idle.get()
        try:
            workers.submit(None, read, allowed_path, *arguments, limit_s=self._limit_s)
            outcome = workers.next_outcome()
        finally:
            self._idle.put(workers)
        if outcome is None or outcome.failure is not None:
            reason = outcome.failure if outcome else "there was no result"
            self._crashed[allowed_path] = f"{allowed_path.path.name}: cannot be shown, {reason}"
            raise SlideError(self._crashed[allowed_path])
        if isinstance(outcome.value, ReadFailure):
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
