"""Reads the pixels of a tile at its resolution and resizes them for the encoder."""

from __future__ import annotations

import math

import numpy as np

from sacmil.errors import MissingExtraError, SlideError, suggest_names
from sacmil.slides.readers._base import Pixels, Slide
from sacmil.units import Level0Px, TilePx

RESAMPLES = ("bilinear", "bicubic")
_LEVEL_TOLERANCE = 1.0001  # a level of 4.0003 is used for tiles that need 4


def read_tile(
    slide: Slide,
    x: int,
    y: int,
    side: Level0Px,
    patch_px: TilePx,
    input_px: TilePx,
    resample: str,
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


def choose_level(slide: Slide, downsample: float) -> int:
    """Return the index of the coarsest level that is fine enough; 0 if none is."""
    fine = [
        number
        for number, level in enumerate(slide.levels)
        if level.downsample <= downsample * _LEVEL_TOLERANCE
    ]
    return max(fine, key=lambda number: slide.levels[number].downsample, default=0)


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
