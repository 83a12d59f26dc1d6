"""The interface of ``parallel.Workers`` in this process, where the processes are not the point."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from sacmil.parallel import Outcome
from sacmil.parallel._child import _answer
from sacmil.slides.readers import Slide, open_slide

USERS = (
    "sacmil.extraction.cohort.Workers",
    "sacmil.training.crossval.Workers",
    "sacmil.workflows.demo.material.Workers",
    "sacmil.workflows.items.Workers",
)

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
    def under_way(self) -> int:
        return len(self._waiting)

    def next_outcome(self, timeout_s: float | None = None) -> Outcome | None:
        if not self._waiting:
            return None
        key, name, arguments = self._waiting.popleft()
        return Outcome(key, *_answer(name, arguments))


def use_inline_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no worker process, half a second of imports each; draw small previews, as long each."""
    for name in USERS:
        monkeypatch.setattr(name, InlineWorkers)
    monkeypatch.setattr("sacmil.extraction.reading._opened", _open_once)
    monkeypatch.setattr("sacmil.slides.preview._SIDE", 240)
