"""A slide as Deep Zoom tiles: levels halve from the full size down to one pixel.

A tile is read from the next finer level of the slide and averaged over areas. Below the coarsest
level, or in a gap of the pyramid, one pixel would need more than ``_MAX_SHRINK`` pixels a side.
Such tiles are cut from an overview that is made once, so no tile needs much memory or time.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sacmil.errors import SlideError
from sacmil.slides.pixels import Thumbnail, choose_level, choose_source, make_thumbnail
from sacmil.slides.readers import Pixels, Slide

TILE_PX = 256
_MAX_SHRINK = 8  # along a side: at most 2,048 pixels a side for a tile
_OVERVIEW_SIDE = 2048
_MAX_OVERVIEW_PIXELS = 400_000_000  # read once, in a few seconds
_PIXEL_TOLERANCE = 0.05  # of a pixel: levels have 4.0003 where 4 is meant


class Box(NamedTuple):
    """An area, in pixels of a Deep Zoom level or of the level it is read from."""

    left: float
    top: float
    right: float
    bottom: float

    def scale(self, factor: float, width: int, height: int) -> Box:
        """Return the box in pixels of another level, within its size and never empty."""
        right, bottom = min(self.right * factor, width), min(self.bottom * factor, height)
        left, top = min(self.left * factor, width - 1), min(self.top * factor, height - 1)
        return Box(
            left, top, max(right, left + _PIXEL_TOLERANCE), max(bottom, top + _PIXEL_TOLERANCE)
        )

    def to_whole_pixels(self) -> tuple[int, int, int, int]:
        """Return the whole pixels it touches: left, top, width, height."""
        left, top = (math.floor(side + _PIXEL_TOLERANCE) for side in (self.left, self.top))
        right, bottom = (math.ceil(side - _PIXEL_TOLERANCE) for side in (self.right, self.bottom))
        return left, top, max(right - left, 1), max(bottom - top, 1)


class DeepZoom:
    """An open slide cut into Deep Zoom tiles; for one thread at a time.

    Args:
        slide: closed together with this.
    """

    def __init__(self, slide: Slide) -> None:
        self.slide = slide
        self.levels = (max(slide.size) - 1).bit_length() + 1
        self._overview: Thumbnail | None = None
        self._overview_downsample = _choose_overview_downsample(slide, self.levels)
        _check_overview(slide, self._overview_downsample)

    def read_tile(self, level: int, x: int, y: int) -> Pixels | None:
        """Return a tile by its column and row; None if there is none.

        Args:
            level: 0 is the slide in one pixel, ``levels - 1`` the slide in full.
            x: column.
            y: row.
        """
        if not 0 <= level < self.levels:
            return None
        downsample = 2 ** (self.levels - 1 - level)
        box = _find_tile_box(self.slide.size, downsample, x, y)
        if box is None:
            return None
        if _is_cheap(self.slide, downsample):
            return self._read_from_level(downsample, box)
        return self._cut_from_overview(downsample, box)

    def close(self) -> None:
        """Close the slide."""
        self.slide.close()

    def _read_from_level(self, downsample: int, box: Box) -> Pixels:
        number = choose_level(self.slide, downsample)
        level = self.slide.levels[number]
        area = box.scale(downsample / level.downsample, level.width, level.height)
        left, top, width, height = area.to_whole_pixels()
        x, y = round(left * level.downsample), round(top * level.downsample)
        pixels = self.slide.read(x, y, number, width, height)
        return _resize_area(pixels, area, (left, top), box)

    def _cut_from_overview(self, downsample: int, box: Box) -> Pixels:
        if self._overview is None:
            self._overview = make_thumbnail(
                self.slide, self._overview_downsample, max_side=_OVERVIEW_SIDE
            )
        pixels = self._overview.pixels
        factor = downsample / self._overview.downsample
        area = box.scale(factor, pixels.shape[1], pixels.shape[0])
        left, top, width, height = area.to_whole_pixels()
        return _resize_area(pixels[top : top + height, left : left + width], area, (left, top), box)


def _find_tile_box(size: tuple[int, int], downsample: int, x: int, y: int) -> Box | None:
    width, height = (-(-side // downsample) for side in size)
    left, top = x * TILE_PX, y * TILE_PX
    if not (0 <= left < width and 0 <= top < height):
        return None
    return Box(left, top, min(left + TILE_PX, width), min(top + TILE_PX, height))


def _resize_area(pixels: Pixels, area: Box, origin: tuple[int, int], box: Box) -> Pixels:
    """Return an area, whose pixels begin at an origin, in the size of the tile."""
    from PIL import Image

    size = round(box.right - box.left), round(box.bottom - box.top)
    if pixels.shape[1::-1] == size:
        return pixels
    height, width = pixels.shape[:2]
    corners = np.subtract(area, (*origin, *origin))
    crop = tuple(np.clip(corners, 0, (width, height, width, height)).tolist())
    enlarged = crop[2] - crop[0] < 0.9 * size[0]
    method = Image.Resampling.BILINEAR if enlarged else Image.Resampling.BOX
    return np.asarray(Image.fromarray(pixels).resize(size, method, box=crop))


def _is_cheap(slide: Slide, downsample: int) -> bool:
    return downsample / slide.levels[choose_level(slide, downsample)].downsample <= _MAX_SHRINK


def _choose_overview_downsample(slide: Slide, levels: int) -> float:
    """Return half the downsample of the first Deep Zoom level that needs the overview."""
    expensive = (2**n for n in range(levels) if not _is_cheap(slide, 2**n))
    first: int = next(expensive, 2**levels)
    return first / 2


def _check_overview(slide: Slide, downsample: float) -> None:
    level = slide.levels[choose_source(slide, downsample, max_side=_OVERVIEW_SIDE).level]
    if level.width * level.height > _MAX_OVERVIEW_PIXELS:
        raise SlideError(
            f"{slide.path.name}: the smallest level for an overview has {level.width:,} x "
            f"{level.height:,} pixels; expected at most {_MAX_OVERVIEW_PIXELS:,}; make a pyramid: "
            f"{make_pyramid_command(slide.path)}"
        )


def make_pyramid_command(path: Path) -> str:
    """Return the libvips command that makes a pyramid."""
    return f"vips tiffsave {path.name} {path.stem}-pyramid.tif --tile --pyramid --compression jpeg"
