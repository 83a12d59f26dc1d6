"""Progress for people: a bar per task on a terminal, a plain line per task elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import click
from tqdm import tqdm


@contextmanager
def bars() -> Iterator[Callable[[str, int, int], None]]:
    """A function to call with (task, done, of how many); a new task begins a new bar."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    current: dict[str, tqdm[NoReturn]] = {}

    def progress(task: str, done: int, total: int) -> None:
        if task not in current:
            _close(current)
            current[task] = tqdm(
                total=total,
                desc=f"{task:<32}",
                disable=not terminal,
                bar_format="{desc}{bar} {n_fmt}/{total_fmt} {elapsed}<{remaining}",
            )
            if not terminal:
                click.echo(task, err=True)
        current[task].update(done - current[task].n)

    try:
        yield progress
    finally:
        _close(current)


def _close(current: dict[str, tqdm[NoReturn]]) -> None:
    for bar in current.values():
        bar.close()
    current.clear()
