"""Processes that read slides, so that a damaged one ends a process and not the server."""

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
"""Of address space each, of which libraries alone take a part."""
_TIMEOUT_S = 30.0


class SlideProcesses:
    """A few processes, started when first needed; for any number of threads.

    Args:
        count: how many; who asks beyond that waits.
        limit_s: seconds a tile may take.
    """

    def __init__(self, count: int | None = None, *, limit_s: float = _TIMEOUT_S) -> None:
        count = count or min(MAX_PROCESSES, os.cpu_count() or 1)
        self._workers = [WorkerPool(1, memory_limit=_MAX_BYTES) for _ in range(count)]
        # the last one used is asked first: it has the slide open
        self._idle: queue.LifoQueue[WorkerPool] = queue.LifoQueue()
        for workers in self._workers:
            self._idle.put(workers)
        self._limit_s = limit_s
        self._crashed: dict[AllowedPath, str] = {}

    def call(
        self, read: Callable[..., ResultT | ReadFailure], allowed_path: AllowedPath, *arguments: Any
    ) -> ResultT:
        """What a function of ``slide_reading`` makes of a slide, or a SlideError.

        Args:
            read: takes the place first.
            allowed_path: of the slide; one that killed its process is not opened again.
            arguments: what it takes besides.
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
            reason = outcome.failure if outcome else "nothing came back"
            self._crashed[allowed_path] = f"{allowed_path.path.name}: cannot be shown, {reason}"
            raise SlideError(self._crashed[allowed_path])
        if isinstance(outcome.value, ReadFailure):
            raise SlideError(outcome.value.message)
        made: ResultT = outcome.value
        return made

    def interrupt(self) -> None:
        """End what is being read, which then counts as failed."""
        for workers in self._workers:
            workers.kill()

    def close(self) -> None:
        """End the processes; nothing may be asked any more."""
        for workers in self._workers:
            workers.__exit__()
