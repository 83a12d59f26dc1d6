"""Reads the pixels of a slide: tiles at a resolution, thumbnails of the whole, white and blur.

A thumbnail is never interpolated: each of its pixels is the mean of ``factor`` x ``factor`` pixels
of one level. Chunks of about ``_CHUNK_PX`` pixels a side bound the memory, even if the only level
has 100,000 pixels a side.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.errors import MissingExtraError, SlideError, suggest_names
from sacmil.slides.readers._base import Pixels, Slide
from sacmil.units import Level0Px, TilePx

RESAMPLES = ("bilinear", "bicubic")
_LEVEL_TOLERANCE = 1.0001  # a level of 4.0003 is used for tiles that need 4
_CHUNK_PX = 2048
_MAX_SHRINK = 6  # more than 36 pixels for one are slow: a level up to twice as coarse is better


def choose_level(slide: Slide, downsample: float, *, tolerance: float = _LEVEL_TOLERANCE) -> int:
    """Return the index of the coarsest level that is fine enough; 0 if none is."""
    levels = enumerate(slide.levels)
    fine = [number for number, level in levels if level.downsample <= downsample * tolerance]
    return max(fine, key=lambda number: slide.levels[number].downsample, default=0)


# Tiles -----------------------------------------------------------------------------------------


def read_tile(
    slide: Slide, x: int, y: int, side: Level0Px, patch_px: TilePx, input_px: TilePx, resample: str
) -> Pixels:
    """Return a square of the slide as the encoder takes it, (input_px, input_px, 3).

    First the square is resized to a patch at the requested resolution, as other tools do. Then
    the patch is resized to the encoder's size. A size that is right is not resized.

    Args:
        slide: an open slide.
        x: left border in level-0 pixels.
        y: upper border in level-0 pixels.
        side: of the square in level-0 pixels; need not be whole.
        patch_px: side of the patch in pixels at the requested resolution.
        input_px: side of the image the encoder takes.
        resample: how to resize to the encoder's size, by its card: bilinear or bicubic.
    """
    if resample not in RESAMPLES:
        raise SlideError(
            f"there is no resampling {resample!r}; {suggest_names(resample, RESAMPLES)}"
        )
    patch = _resize_square(_read_square(slide, x, y, side, patch_px), patch_px, "bicubic")
    return _resize_square(patch, input_px, resample)


def _read_square(slide: Slide, x: int, y: int, side: float, patch_px: int) -> Pixels:
    """Read at whole pixels of the level; sizes are equal, so neighbours may be one pixel off."""
    number = choose_level(slide, side / patch_px)
    downsample = slide.levels[number].downsample
    size = max(_round_half_up(side / downsample), 1)
    left, top = (_round_half_up(_round_half_up(at / downsample) * downsample) for at in (x, y))
    return slide.read(left, top, number, size, size)


def _round_half_up(value: float) -> int:
    return math.floor(value + 0.5)


def _resize_square(pixels: Pixels, side: int, resample: str) -> Pixels:
    if pixels.shape[:2] == (side, side):
        return pixels
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("slides", "resizing tiles") from None
    image = Image.fromarray(pixels).resize((side, side), Image.Resampling[resample.upper()])
    return np.array(image)


# Tiles that are not worth encoding: these take one tile (H, W, 3) or many (B, H, W, 3) -----------


def is_white(tiles: Pixels, *, brightness: int = 210, share: float = 0.95) -> npt.NDArray[np.bool_]:
    """Return whether each tile is bare glass.

    Args:
        tiles: RGB.
        brightness: a pixel is white if its darkest channel reaches this, 0 to 255.
        share: a tile is white if this share of its pixels is.
    """
    bright = np.minimum(np.minimum(tiles[..., 0], tiles[..., 1]), tiles[..., 2]) >= brightness
    return np.asarray(bright.mean(axis=(-2, -1)) >= share)


def is_blurred(tiles: Pixels, *, sharpness: float = 30.0) -> npt.NDArray[np.bool_]:
    """Return whether each tile is out of focus.

    Args:
        tiles: RGB.
        sharpness: below this a tile is blurred, see ``compute_sharpness``.
    """
    return np.asarray(compute_sharpness(tiles) < sharpness)


def compute_sharpness(tiles: Pixels) -> npt.NDArray[np.float64]:
    """Return the variance of the Laplacian of grey levels, 0 to 255, inside each tile.

    Sharp tissue at 0.25 to 0.5 µm per pixel has 70 to 2,400; the same tiles blurred by a standard
    deviation of two pixels have 4 to 35. Bare glass is near 0.
    """
    red, green, blue = (tiles[..., channel].astype(np.int16) for channel in range(3))
    gray = (red + 2 * green + blue) >> 2
    laplacian = (
        gray[..., 1:-1, :-2] + gray[..., 1:-1, 2:] + gray[..., :-2, 1:-1] + gray[..., 2:, 1:-1]
    ) - 4 * gray[..., 1:-1, 1:-1]
    return np.asarray(laplacian.var(axis=(-2, -1), dtype=np.float32), np.float64)


# Thumbnails ------------------------------------------------------------------------------------


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
        pixels = _block_means(self.pixels, *scaled_shape(self.slide_size, downsample), factor)
        return self._replace(pixels=pixels, downsample=downsample)


class ThumbnailSource(NamedTuple):
    """The level that a thumbnail is made from, and the side of the blocks that become a pixel."""

    level: int
    factor: int
    downsample: float
    """Level-0 pixels per pixel of the thumbnail."""


def make_thumbnail(slide: Slide, downsample: float, *, max_side: int = 4000) -> Thumbnail:
    """Return a thumbnail at about a downsample, or coarser if a side would exceed ``max_side``.

    Args:
        slide: an open slide.
        downsample: level-0 pixels per pixel of the picture; met to within a factor of 2.
        max_side: the largest number of pixels of a side.
    """
    source = choose_source(slide, downsample, max_side=max_side)
    height, width = scaled_shape(slide.size, source.downsample)
    pixels = np.empty((height, width, 3), np.uint8)
    step = max(1, _CHUNK_PX // source.factor)
    for top in range(0, height, step):
        for left in range(0, width, step):
            chunk = pixels[top : top + step, left : left + step]
            chunk[...] = _read_block(slide, source, left, top, chunk.shape[1], chunk.shape[0])
    return Thumbnail(pixels, source.downsample, slide.size, slide.path)


def scaled_shape(slide_size: tuple[int, int], downsample: float) -> tuple[int, int]:
    """Return the shape (h, w) of any picture or mask of the whole slide at a downsample."""
    width, height = slide_size
    return math.ceil(height / downsample), math.ceil(width / downsample)


def choose_source(slide: Slide, downsample: float, *, max_side: int = 4000) -> ThumbnailSource:
    """Return the cheapest level that is fine enough, and the whole factor that remains."""
    longest = max(slide.size)
    wanted = max(1.0, downsample, longest / max_side)
    # a level is often slightly coarser than its nominal 16, and should still be used
    chosen = choose_level(slide, wanted, tolerance=1.1)
    if wanted / slide.levels[chosen].downsample > _MAX_SHRINK:
        chosen = choose_level(slide, wanted, tolerance=2)
    level = slide.levels[chosen].downsample
    factor = max(1, round(wanted / level), math.ceil(longest / level / max_side))
    return ThumbnailSource(chosen, factor, level * factor)


def _read_block(
    slide: Slide, source: ThumbnailSource, left: int, top: int, width: int, height: int
) -> Pixels:
    """Read a block of the thumbnail; its position and size are in pixels of the thumbnail."""
    level, factor = slide.levels[source.level], source.factor
    x, y = (round(start * factor * level.downsample) for start in (left, top))
    wide = min(width * factor, max(1, level.width - left * factor))
    high = min(height * factor, max(1, level.height - top * factor))
    return _block_means(slide.read(x, y, source.level, wide, high), height, width, factor)


def _block_means(pixels: Pixels, height: int, width: int, factor: int) -> Pixels:
    """Average blocks of ``factor`` x ``factor`` to (height, width, 3), rounded to the nearest.

    If pixels are missing at the slide's edge, the last ones are repeated. White instead would make
    tissue at the edge paler.
    """
    pixels = pixels[: height * factor, : width * factor]
    missing = (height * factor - pixels.shape[0], width * factor - pixels.shape[1])
    pixels = np.pad(pixels, [(0, missing[0]), (0, missing[1]), (0, 0)], mode="edge")
    if factor == 1:
        return pixels
    rows: npt.NDArray[np.uint32] = pixels.reshape(height, factor, -1).sum(axis=1, dtype=np.uint32)
    sums = rows.reshape(height, width, factor, 3).sum(axis=2, dtype=np.uint32)
    return np.asarray((sums + factor * factor // 2) // (factor * factor), np.uint8)
