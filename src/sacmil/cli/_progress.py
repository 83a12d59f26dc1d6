"""Progress on the command line: a bar per task on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click
from tqdm import tqdm

from sacmil.cli._time_left import TimeLeft
from sacmil.progress import ProgressCallback

_LINE_EVERY_S = 60.0
"""Seconds between two lines of progress where there is no terminal."""


@contextmanager
def progress_bars() -> Iterator[ProgressCallback]:
    """Yield a progress callback; each new task begins a new bar."""
    terminal = sys.stderr is not None and sys.stderr.isatty()
    current: dict[str, tqdm[NoReturn]] = {}
    printed_at = 0.0
    left = TimeLeft()

    def progress(task: str, done: int, total: int, note: str = "") -> None:
        nonlocal printed_at, left
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
            left.format_time_left(done, total)  # an earlier run did what is done by now
            if not terminal:
                click.echo(task, err=True)
                printed_at = time.monotonic()
        current[task].set_postfix_str(note, refresh=False)
        current[task].update(done - current[task].n)
        if not terminal and time.monotonic() - printed_at > _LINE_EVERY_S:
            words = [f"{task}: {done} of {total}", note, left.format_time_left(done, total)]
            click.echo(", ".join(filter(None, words)), err=True)
            printed_at = time.monotonic()
            current[task].n = done

    try:
        yield progress
    finally:
        _close_bars(current)


def _close_bars(current: dict[str, tqdm[NoReturn]]) -> None:
    for bar in current.values():
        bar.close()
    current.clear()
