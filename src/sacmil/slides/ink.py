"""Finds pen strokes and black borders on the glass.

Tissue stained with haematoxylin and eosin is pink to purple: red above green, blue above green.
Immunostains add brown and pale blue. Ink has colours that no stain has: any green, blue or red at
full strength, or dark without colour.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from sacmil.slides.readers._base import Pixels

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

# Hues in degrees (red 0, green 120, blue 240); chroma from 0 to 1, relative to the background.
_GREEN = (65.0, 185.0)
_GREEN_CHROMA = 0.10
_BLUE = (185.0, 250.0)
_BLUE_CHROMA = 0.35
_PALE_BLUE = (185.0, 225.0)
_PALE_BLUE_CHROMA = 0.25
_RED = (350.0, 20.0)
_RED_CHROMA = 0.62
_BLACK_LIGHT = 0.42
_BLACK_CHROMA = 0.12
_RIM_COLD = (65.0, 255.0)
_RIM_RED = (349.0, 25.0)
_RIM_CHROMA = 0.02
_CHUNK_ROWS = 256  # processed at a time, to bound the memory


class PixelColors(NamedTuple):
    """Properties of the colour of each pixel, (h, w) each."""

    chroma: Floats
    """Distance from grey, 0 to 1."""
    ink: Mask
    """Whether the colour can only be ink: no stain has it."""
    rim: Mask
    """Whether the colour can be the pale rim of a stroke; tissue may have it too."""


def classify_colors(pixels: Pixels, background: npt.NDArray[np.float32]) -> PixelColors:
    """Classify each pixel by the share of the background's light that comes through.

    Args:
        pixels: (h, w, 3), RGB.
        background: (3,), the colour of bare glass.
    """
    chunks = np.array_split(pixels, math.ceil(len(pixels) / _CHUNK_ROWS))
    colors = [_classify_chunk(np.minimum(chunk / background, 1)) for chunk in chunks]
    return PixelColors(*(np.concatenate(arrays) for arrays in zip(*colors, strict=True)))


def find_ink(colors: PixelColors, *, rim_px: int, min_px: float) -> Mask:
    """Return a mask of ink and black borders.

    Args:
        colors: of the picture.
        rim_px: largest width of a stroke's pale rim.
        min_px: smaller areas are no stroke but pigment, a fold or a bubble.
    """
    core = remove_specks(colors.ink, min_px)
    if not core.any():
        return core
    stroke = ndimage.binary_dilation(core, iterations=rim_px, mask=colors.rim | core)
    # at the edge of a stroke, its colour is already mixed with what is beneath
    return np.asarray(ndimage.binary_dilation(stroke, structure=np.ones((3, 3), bool)), bool)


def remove_specks(mask: Mask, min_px: float) -> Mask:
    """Return the mask without connected areas of fewer pixels than ``min_px``."""
    labels, _ = ndimage.label(mask)
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0  # the background
    kept: npt.NDArray[Any] = sizes >= max(min_px, 1)
    return np.asarray(kept[labels], bool)


def _classify_chunk(light: Floats) -> PixelColors:
    red, green, blue = np.moveaxis(light, -1, 0)
    brightest = np.maximum(np.maximum(red, green), blue)
    chroma = brightest - np.minimum(np.minimum(red, green), blue)
    hue = _hue(light, brightest, chroma)
    ink = (brightest < _BLACK_LIGHT) & (chroma < _BLACK_CHROMA)
    ink |= _is_hue_within(hue, _GREEN) & (chroma > _GREEN_CHROMA)
    ink |= _is_hue_within(hue, _BLUE) & (chroma > _BLUE_CHROMA)
    ink |= _is_hue_within(hue, _PALE_BLUE) & (chroma > _PALE_BLUE_CHROMA)
    ink |= _is_hue_within(hue, _RED) & (chroma > _RED_CHROMA)
    rim = (_is_hue_within(hue, _RIM_COLD) | _is_hue_within(hue, _RIM_RED)) & (chroma > _RIM_CHROMA)
    return PixelColors(chroma, ink, rim)


def _hue(light: Floats, brightest: Floats, chroma: Floats) -> Floats:
    """Return hues in degrees, (h, w), of (h, w, 3); greys get 300, the hue of tissue."""
    red, green, blue = np.moveaxis(light, -1, 0)
    span = np.where(chroma > 0, chroma, 1)
    hue = np.where(brightest == green, 2 + (blue - red) / span, 4 + (red - green) / span)
    hue = np.where(brightest == red, (green - blue) / span % 6, hue)
    return np.where(chroma > 0, 60 * hue, 300).astype(np.float32)


def _is_hue_within(hue: Floats, bounds: tuple[float, float]) -> Mask:
    low, high = bounds
    if low <= high:
        return np.asarray((hue >= low) & (hue < high), bool)
    return np.asarray((hue >= low) | (hue < high), bool)
