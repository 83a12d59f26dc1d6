"""Progress of extraction: a bar of tiles on a terminal, one line per slide elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import click
from tqdm import tqdm

from sacmil.cli._failures import find_cause
from sacmil.cli._option_names import name_options
from sacmil.cli._time_left import TimeLeft

if TYPE_CHECKING:
    from sacmil.extraction import ExtractionRow


class ExtractionProgressBar:
    """Shows tiles per second, slides left and time left.

    Args:
        slides: number of slides.
    """

    def __init__(self, slides: int) -> None:
        self._num_slides = self._slides_left = slides
        self._by_slides, self._by_tiles = TimeLeft(), TimeLeft()
        self._tiles_encoded, self._tiles_found = 0, 0
        self._slides_tiled, self._slides_encoded = 0, 0
        self._causes: set[str] = set()
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._bar: tqdm[NoReturn] = tqdm(
            total=0,
            unit="tile",
            disable=not self._terminal,
            bar_format="{desc} {bar} {n_fmt}/{total_fmt} tiles {rate_fmt} {postfix}",
            desc=f"0/{slides} slides",
        )

    def on_tiles(self, encoded: int, found: int) -> None:
        """Count tiles newly encoded and newly found."""
        self._tiles_encoded, self._tiles_found = (
            self._tiles_encoded + encoded,
            self._tiles_found + found,
        )
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
            return self._by_slides.format_time_left(
                self._num_slides - self._slides_left, self._num_slides
            )
        unseen = max(0, self._slides_left - max(0, self._slides_tiled - self._slides_encoded))
        total = self._tiles_found * (1 + unseen / self._slides_tiled)
        return self._by_tiles.format_time_left(self._tiles_encoded, total)

    def close(self) -> None:
        """Close the bar and leave it on the screen."""
        self._bar.close()

    def _print_line(self, line: str) -> None:
        if self._terminal:
            self._bar.write(line, file=sys.stderr)
        else:
            click.echo(line, err=True)


@contextmanager
def show_extraction_progress(slides: int) -> Iterator[ExtractionProgressBar]:
    """Show progress within a with block."""
    progress = ExtractionProgressBar(slides)
    try:
        yield progress
    finally:
        progress.close()
