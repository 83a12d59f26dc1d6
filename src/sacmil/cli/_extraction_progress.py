"""How far extraction is: a bar of tiles on a terminal, a line per slide elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import click
from tqdm import tqdm

if TYPE_CHECKING:
    from sacmil.extraction import Row


class Told:
    """Shows tiles per second, slides left and time left.

    Args:
        slides: how many there are.
    """

    def __init__(self, slides: int) -> None:
        self._all = self._left = slides
        self._begun = time.monotonic()
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._bar: tqdm[NoReturn] = tqdm(
            total=0,
            unit="tile",
            disable=not self._terminal,
            bar_format="{desc} {bar} {n_fmt}/{total_fmt} tiles {rate_fmt} {postfix}",
            desc=f"0/{slides} slides",
        )

    def tiles(self, encoded: int, found: int) -> None:
        """So many more tiles have been encoded, and so many more have been found."""
        self._bar.total = (self._bar.total or 0) + found
        self._bar.update(encoded)

    def slide(self, row: Row, left: int) -> None:
        """A slide is over; so many are left."""
        self._left = left
        done = self._all - left
        if row.status == "failed":
            self._say(f"{row.slide_id}: failed, {row.reason}")
        elif not self._terminal:
            self._say(f"{done}/{self._all} {row.slide_id}: {row.tiles or 0} tiles")
        remaining = (time.monotonic() - self._begun) / done * left
        self._bar.set_description_str(f"{done}/{self._all} slides")
        self._bar.set_postfix_str(f"about {_duration(remaining)} left" if left else "")

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()

    def _say(self, line: str) -> None:
        if self._terminal:
            self._bar.write(line, file=sys.stderr)
        else:
            click.echo(line, err=True)


@contextmanager
def told(slides: int) -> Iterator[Told]:
    """Progress for the time of a block."""
    progress = Told(slides)
    try:
        yield progress
    finally:
        progress.close()


def _duration(seconds: float) -> str:
    """Seconds for people.

    >>> _duration(42), _duration(180), _duration(8000)
    ('42 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
