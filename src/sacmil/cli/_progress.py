"""Progress on the command line: a bar per task on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import click
from tqdm import tqdm

from sacmil.arguments import ProgressCallback
from sacmil.cli._messages import find_cause, name_options

if TYPE_CHECKING:
    from sacmil.extraction import ExtractionRow

_MIN_ELAPSED_S = 10.0
"""Seconds before the first estimate of the time left; an earlier one would be a guess."""
_LINE_EVERY_S = 60.0
"""Seconds between two lines of progress where there is no terminal."""


class TimeLeft:
    """Estimates by the mean rate since the first call, which may be that of a resumed task."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._first: float | None = None

    def format_time_left(self, done: float, total: float) -> str:
        """Return text such as "about 3 min left", or "" if it is too early or nothing is left.

        Args:
            done: amount that is done.
            total: whole amount.
        """
        now = time.monotonic()
        if self._first is None:
            self._begun, self._first = now, done
        elapsed, steps = now - self._begun, done - self._first
        if elapsed < _MIN_ELAPSED_S or steps <= 0 or done >= total:
            return ""
        return f"about {format_duration(elapsed / steps * (total - done))} left"


def format_duration(seconds: float) -> str:
    """Format a number of seconds in a readable unit.

    >>> format_duration(42), format_duration(180), format_duration(8000)
    ('42 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _has_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def progress_bars() -> Iterator[ProgressCallback]:
    """Yield a progress callback; each new task begins a new bar."""
    terminal = _has_terminal()
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


class ExtractionProgressBar:
    """Shows tiles per second, slides left and time left; without a terminal, a line per slide.

    Args:
        slides: number of slides.
    """

    def __init__(self, slides: int) -> None:
        self._num_slides = self._slides_left = slides
        self._by_slides, self._by_tiles = TimeLeft(), TimeLeft()
        self._tiles_encoded, self._tiles_found = 0, 0
        self._slides_tiled, self._slides_encoded = 0, 0
        self._causes: set[str] = set()
        self._terminal = _has_terminal()
        self._bar: tqdm[NoReturn] = tqdm(
            total=0,
            unit="tile",
            disable=not self._terminal,
            bar_format="{desc} {bar} {n_fmt}/{total_fmt} tiles {rate_fmt} {postfix}",
            desc=f"0/{slides} slides",
        )

    def on_tiles(self, encoded: int, found: int) -> None:
        """Count tiles newly encoded and newly found."""
        self._tiles_encoded += encoded
        self._tiles_found += found
        self._slides_tiled += found > 0
        self._bar.total = (self._bar.total or 0) + found
        self._bar.set_postfix_str(self._format_time_left(), refresh=False)
        self._bar.update(encoded)

    def on_slide(self, row: ExtractionRow, left: int) -> None:
        """Count a slide that is done or has failed, and print its line."""
        self._slides_left = left
        done = self._num_slides - left
        self._slides_encoded += float(row.seconds or 0) > 0
        if row.status == "failed":
            self._print_cause(row)
        elif not self._terminal:
            words = [f"{done}/{self._num_slides} {row.slide_id}: {row.tiles or 0} tiles"]
            self._print_line(", ".join([*words, *filter(None, [self._format_time_left()])]))
        self._bar.set_description_str(f"{done}/{self._num_slides} slides")
        self._bar.set_postfix_str(self._format_time_left())

    def _print_cause(self, row: ExtractionRow) -> None:
        """Print a cause the first time it occurs; the command's summary counts them all."""
        cause = find_cause(row.slide_id, row.reason)
        if cause not in self._causes:
            self._causes.add(cause)
            self._print_line(f"{row.slide_id}: failed, {name_options(row.reason)}")

    def _format_time_left(self) -> str:
        """Estimate by tiles; a slide not tiled yet counts as the mean of those that were."""
        if not self._slides_tiled:
            done = self._num_slides - self._slides_left
            return self._by_slides.format_time_left(done, self._num_slides)
        unseen = max(0, self._slides_left - max(0, self._slides_tiled - self._slides_encoded))
        total = self._tiles_found * (1 + unseen / self._slides_tiled)
        return self._by_tiles.format_time_left(self._tiles_encoded, total)

    def close(self) -> None:
        """Close the bar and leave it on the screen."""
        self._bar.close()

    def _print_line(self, line: str) -> None:
        self._bar.write(line, file=sys.stderr)


@contextmanager
def show_extraction_progress(slides: int) -> Iterator[ExtractionProgressBar]:
    """Show progress within a with block."""
    progress = ExtractionProgressBar(slides)
    try:
        yield progress
    finally:
        progress.close()
