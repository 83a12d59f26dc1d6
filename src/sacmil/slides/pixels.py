"""The pixels of a tile: cut at the wanted resolution, resized to what the encoder takes."""

from __future__ import annotations

import math

import numpy as np

from sacmil.errors import MissingExtraError, SlideError, suggest_names
from sacmil.slides.readers._base import Pixels, Slide
from sacmil.units import Level0Px, TilePx

RESAMPLES = ("bilinear", "bicubic")
_LEVEL_TOLERANCE = 1.0001  # a level of 4.0003 serves tiles that want 4


def read_tile(
    slide: Slide,
    x: int,
    y: int,
    side: Level0Px,
    patch_px: TilePx,
    input_px: TilePx,
    resample: str,
) -> Pixels:
    """(input_px, input_px, 3): a square of the slide as an encoder sees it.

    First the square becomes a patch at the resolution asked for, as every tool of the field cuts
    it, then the patch takes the encoder's size. Where a size is already right nothing is resized.

    Args:
        slide: an open slide.
        x: left border in level-0 pixels.
        y: upper border in level-0 pixels.
        side: of the square in level-0 pixels; need not be whole.
        patch_px: side of the patch in pixels at the resolution asked for.
        input_px: side of the image the encoder takes.
        resample: how patch becomes image, by the encoder's card: bilinear or bicubic.
    """
    if resample not in RESAMPLES:
        raise SlideError(
            f"there is no resampling {resample!r}; {suggest_names(resample, RESAMPLES)}"
        )
    patch = _resize_square(_read_square(slide, x, y, side, patch_px), patch_px, "bicubic")
    return _resize_square(patch, input_px, resample)


def choose_level(slide: Slide, downsample: float) -> int:
    """Index of the coarsest level that is not coarser than needed; 0 if all are."""
    fine = [
        number
        for number, level in enumerate(slide.levels)
        if level.downsample <= downsample * _LEVEL_TOLERANCE
    ]
    return max(fine, key=lambda number: slide.levels[number].downsample, default=0)


def _read_square(slide: Slide, x: int, y: int, side: float, patch_px: int) -> Pixels:
    """Read on pixel borders of the level; sizes are equal, so neighbours may be one pixel off."""
    number = choose_level(slide, side / patch_px)
    downsample = slide.levels[number].downsample
    size = max(_round_half_up(side / downsample), 1)
    left, top = (
        _round_half_up(_round_half_up(place / downsample) * downsample) for place in (x, y)
    )
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
