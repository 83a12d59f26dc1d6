"""The interface of readers: a slide whose pixels are read by position and level."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from sacmil.units import MicronsPerPixel

Pixels = npt.NDArray[np.uint8]
"""(height, width, 3), RGB."""


class Level(NamedTuple):
    """One resolution of a pyramid."""

    width: int
    height: int
    downsample: float
    """Level-0 pixels per pixel of this level; 1.0 at level 0."""


class Slide(ABC):
    """An open slide. Use it in a ``with`` block; one process, one thread."""

    reader: str
    """Name of the reader that opened it."""
    path: Path
    levels: tuple[Level, ...]
    """The finest first."""
    mpp: MicronsPerPixel | None
    """Microns per level-0 pixel as the file states it, plausible or not; None if it does not."""
    bounds_origin: tuple[int, int] | None = None
    """Upper left corner of the scanned area, if the format has one."""

    @abstractmethod
    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        """Read a region of a level; pixels outside the slide are white.

        Args:
            x: left border in level-0 pixels, at a whole pixel of the level.
            y: upper border in level-0 pixels.
            level: index into ``levels``.
            width: in pixels of that level.
            height: in pixels of that level.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def set_cache_size(self, max_bytes: int) -> None:  # noqa: B027 - most readers keep nothing
        """Keep at most ``max_bytes`` of decoded tiles for later reads."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of level 0."""
        return self.levels[0].width, self.levels[0].height

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
