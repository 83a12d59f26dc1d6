"""Progress for people: a bar per task on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol

import click
from tqdm import tqdm

from sacmil.cli._time_left import TimeLeft

_LINE_EVERY_S = 60.0
"""How often a long task says where it stands where there is no terminal."""


class ProgressCallback(Protocol):
    """Called with a task, how much of it is done, how much there is, and the newest figure."""

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None:
        """Tell."""


@contextmanager
def progress_bars() -> Iterator[ProgressCallback]:
    """A function to call with (task, done, of how many); a new task begins a new bar."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    current: dict[str, tqdm[NoReturn]] = {}
    told_at = 0.0
    left = TimeLeft()

    def progress(task: str, done: int, total: int, note: str = "") -> None:
        nonlocal told_at, left
        if task not in current:
            _close_bars(current)
            current[task] = tqdm(
                total=total,
                desc=f"{task:<32}",
                disable=not terminal,
                initial=done,
                bar_format="{desc}{bar} {n_fmt}/{total_fmt} {elapsed}, {remaining} left{postfix}",
            )
            left = TimeLeft()
            left.format_time_left(done, total)  # what is done by now was done by an earlier run
            if not terminal:
                click.echo(task, err=True)
                told_at = time.monotonic()
        current[task].set_postfix_str(note, refresh=False)
        current[task].update(done - current[task].n)
        if not terminal and time.monotonic() - told_at > _LINE_EVERY_S:
            parts = [f"{task}: {done} of {total}", note, left.format_time_left(done, total)]
            click.echo(", ".join(filter(None, parts)), err=True)
            told_at = time.monotonic()
            current[task].n = done

    try:
        yield progress
    finally:
        _close_bars(current)


def _close_bars(current: dict[str, tqdm[NoReturn]]) -> None:
    for bar in current.values():
        bar.close()
    current.clear()
