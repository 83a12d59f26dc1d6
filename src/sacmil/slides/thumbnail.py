"""Makes thumbnails of slides from means of blocks of pixels, read in chunks.

The picture is never interpolated: each of its pixels is the mean of ``factor`` x ``factor`` pixels
of one level. Chunks of about ``_CHUNK_PX`` pixels a side bound the memory, even if the only level
has 100,000 pixels a side.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.slides.readers._base import Pixels, Slide

_CHUNK_PX = 2048
_MAX_SHRINK = 6  # more than 36 pixels for one are slow: a level up to twice as coarse is better


class Thumbnail(NamedTuple):
    """A small picture of a slide, and its downsample."""

    pixels: Pixels
    """(h, w, 3), RGB."""
    downsample: float
    """Level-0 pixels per pixel of the picture."""
    slide_size: tuple[int, int]
    """Width and height of level 0."""
    path: Path
    """Of the slide, for messages."""

    def shrink(self, factor: int) -> Thumbnail:
        """Return the picture, smaller by a whole factor; missing edge pixels are repeated."""
        downsample = self.downsample * factor
        height, width = scaled_shape(self.slide_size, downsample)
        pixels = _block_means(_fit_size(self.pixels, height * factor, width * factor), factor)
        return Thumbnail(pixels, downsample, self.slide_size, self.path)


class ThumbnailSource(NamedTuple):
    """The level that a thumbnail is made from, and the side of the blocks that become a pixel."""

    level: int
    factor: int


def make_thumbnail(slide: Slide, downsample: float, *, max_side: int = 4000) -> Thumbnail:
    """Return a thumbnail at about a downsample, or coarser if a side would exceed ``max_side``.

    Args:
        slide: an open slide.
        downsample: level-0 pixels per pixel of the picture; met to within a factor of 2.
        max_side: the largest number of pixels of a side.
    """
    source = choose_source(slide, downsample, max_side=max_side)
    exact = compute_downsample(slide, source)
    height, width = scaled_shape(slide.size, exact)
    pixels = np.empty((height, width, 3), np.uint8)
    step = max(1, _CHUNK_PX // source.factor)
    for top in range(0, height, step):
        for left in range(0, width, step):
            chunk = pixels[top : top + step, left : left + step]
            chunk[...] = _read_block(slide, source, left, top, chunk.shape[1], chunk.shape[0])
    return Thumbnail(pixels, exact, slide.size, slide.path)


def scaled_shape(slide_size: tuple[int, int], downsample: float) -> tuple[int, int]:
    """Return the shape (h, w) of any picture or mask of the whole slide at a downsample."""
    width, height = slide_size
    return math.ceil(height / downsample), math.ceil(width / downsample)


def choose_source(slide: Slide, downsample: float, *, max_side: int = 4000) -> ThumbnailSource:
    """Return the cheapest level that is fine enough, and the whole factor that remains."""
    longest = max(slide.size)
    wanted = max(1.0, downsample, longest / max_side)
    # a level is often slightly coarser than its nominal 16, and should still be used
    chosen = _find_coarsest_level(slide, 1.1 * wanted)
    if wanted / slide.levels[chosen].downsample > _MAX_SHRINK:
        chosen = _find_coarsest_level(slide, 2 * wanted)
    level = slide.levels[chosen]
    factor = max(1, round(wanted / level.downsample))
    return ThumbnailSource(chosen, max(factor, math.ceil(longest / level.downsample / max_side)))


def _find_coarsest_level(slide: Slide, limit: float) -> int:
    fine_enough = [i for i, level in enumerate(slide.levels) if level.downsample <= limit]
    return max(fine_enough, key=lambda i: slide.levels[i].downsample, default=0)


def compute_downsample(slide: Slide, source: ThumbnailSource) -> float:
    """Return level-0 pixels per pixel of a thumbnail from that source."""
    return slide.levels[source.level].downsample * source.factor


def _read_block(
    slide: Slide, source: ThumbnailSource, left: int, top: int, width: int, height: int
) -> Pixels:
    """Read a block of the thumbnail; its position and size are in pixels of the thumbnail."""
    level = slide.levels[source.level]
    x, y = (round(start * source.factor * level.downsample) for start in (left, top))
    wide = min(width * source.factor, max(1, level.width - left * source.factor))
    high = min(height * source.factor, max(1, level.height - top * source.factor))
    pixels = slide.read(x, y, source.level, wide, high)
    return _block_means(
        _fit_size(pixels, height * source.factor, width * source.factor), source.factor
    )


def _fit_size(pixels: Pixels, height: int, width: int) -> Pixels:
    """Crop to a size; if pixels are missing at the slide's edge, the last ones are repeated.

    White instead would make tissue at the edge paler.
    """
    pixels = pixels[:height, :width]
    missing = ((0, height - pixels.shape[0]), (0, width - pixels.shape[1]), (0, 0))
    return np.pad(pixels, missing, mode="edge")


def _block_means(pixels: Pixels, factor: int) -> Pixels:
    """Average (h * factor, w * factor, 3) to (h, w, 3), rounded to the nearest."""
    if factor == 1:
        return pixels
    height, width = pixels.shape[0] // factor, pixels.shape[1] // factor
    rows: npt.NDArray[np.uint32] = pixels.reshape(height, factor, -1).sum(axis=1, dtype=np.uint32)
    sums = rows.reshape(height, width, factor, 3).sum(axis=2, dtype=np.uint32)
    return np.asarray((sums + factor * factor // 2) // (factor * factor), np.uint8)
