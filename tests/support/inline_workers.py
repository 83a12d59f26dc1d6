"""The interface of ``parallel.WorkerPool`` in this process, for tests that need no processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import pytest

from sacmil.parallel import TaskOutcome
from sacmil.parallel._child import _run_task
from sacmil.slides.readers import Slide, open_slide

USERS = (
    "sacmil.extraction.pipeline",
    "sacmil.parallel.local",
    "sacmil.training.run_jobs",
    "sacmil.workflows.demo",
    "sacmil.workflows.inputs",
)
"""Modules that start worker processes; that of ``run_each`` starts them for others."""

_open_slides: dict[tuple[Path, str | None], Slide] = {}


def _open_once(path: Path, reader: str | None) -> Slide:
    """Open a slide that the workers close at their end; a process that ends needs no closing."""
    if (path, reader) not in _open_slides:
        _open_slides[path, reader] = open_slide(path, reader)
    return _open_slides[path, reader]


class InlineWorkers:
    """Runs each task here when its outcome is requested; limits of time and memory do not count."""

    def __init__(self, count: int, **_: Any) -> None:
        self.count = count
        self._waiting: deque[tuple[Any, str, tuple[Any, ...]]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.clear()
        for slide in _open_slides.values():
            slide.close()
        _open_slides.clear()

    def submit(
        self, key: Any, function: Callable[..., Any], *arguments: Any, limit_s: float
    ) -> None:
        name = f"{function.__module__}:{function.__qualname__}"
        self._waiting.append((key, name, arguments))

    @property
    def pending_count(self) -> int:
        return len(self._waiting)

    def next_outcome(self, timeout_s: float | None = None) -> TaskOutcome | None:
        if not self._waiting:
            return None
        key, name, arguments = self._waiting.popleft()
        return TaskOutcome(key, *_run_task(name, arguments))


def use_inline_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no worker process, half a second of imports each; draw small previews, as long each."""
    for name in USERS:
        # By import_module: the function of the same name hides a module as an attribute.
        monkeypatch.setattr(import_module(name), "WorkerPool", InlineWorkers)
    monkeypatch.setattr("sacmil.extraction.prepare_slide._open_cached", _open_once)
    monkeypatch.setattr("sacmil.slides.preview._SIDE", 240)
