"""Processes that read slides, so that a damaged one ends a process and not the server."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from typing import Any, TypeVar

from sacmil.errors import SlideError
from sacmil.parallel.local import Workers
from sacmil.viewer.confinement import Place
from sacmil.viewer.slide_reading import Told

Made = TypeVar("Made")

MOST_PROCESSES = 4
_MOST_BYTES = 4 * 2**30
"""Of address space each, of which libraries alone take a part."""
_LIMIT_S = 30.0


class SlideProcesses:
    """A few processes, started when first needed; for any number of threads.

    Args:
        count: how many; who asks beyond that waits.
        limit_s: seconds a tile may take.
    """

    def __init__(self, count: int | None = None, *, limit_s: float = _LIMIT_S) -> None:
        count = count or min(MOST_PROCESSES, os.cpu_count() or 1)
        self._all = [Workers(1, memory_limit=_MOST_BYTES) for _ in range(count)]
        # the last one used is asked first: it has the slide open
        self._idle: queue.LifoQueue[Workers] = queue.LifoQueue()
        for workers in self._all:
            self._idle.put(workers)
        self._limit_s = limit_s
        self._deadly: dict[Place, str] = {}

    def call(self, read: Callable[..., Made | Told], place: Place, *arguments: Any) -> Made:
        """What a function of ``slide_reading`` makes of a slide, or a SlideError.

        Args:
            read: takes the place first.
            place: of the slide; one that killed its process is not opened again.
            arguments: what it takes besides.
        """
        if place in self._deadly:
            raise SlideError(self._deadly[place])
        workers = self._idle.get()
        try:
            workers.submit(None, read, place, *arguments, limit_s=self._limit_s)
            outcome = workers.next_outcome()
        finally:
            self._idle.put(workers)
        if outcome is None or outcome.failure is not None:
            reason = outcome.failure if outcome else "nothing came back"
            self._deadly[place] = f"{place.path.name}: cannot be shown, {reason}"
            raise SlideError(self._deadly[place])
        if isinstance(outcome.value, Told):
            raise SlideError(outcome.value.sentence)
        made: Made = outcome.value
        return made

    def interrupt(self) -> None:
        """End what is being read, which then counts as failed."""
        for workers in self._all:
            workers.kill()

    def close(self) -> None:
        """End the processes; nothing may be asked any more."""
        for workers in self._all:
            workers.__exit__()
