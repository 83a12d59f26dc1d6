"""Convert microns to level-0 pixels, for layouts that do not store the slide's resolution."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.formats._hints import Hints
from sacmil.units import Level0Px, MicronsPerPixel

_WHOLE_PIXEL_TOLERANCE = 1 / 64
"""Coordinates this close to whole pixels were whole before they were stored as float32 µm."""


class PixelScale(NamedTuple):
    """Third to fifth argument of Bag."""

    coords: npt.NDArray[np.float64]
    patch_size: Level0Px
    mpp: MicronsPerPixel


def convert_to_level0(
    coords_um: npt.NDArray[np.float64], tile_um: float, mpp_of_tile: float, hints: Hints
) -> PixelScale:
    """Convert to level-0 pixels if the hints give the slide's resolution, else to tile pixels.

    Args:
        coords_um: upper left corners in µm.
        tile_um: side of a tile in µm.
        mpp_of_tile: the slide's µm per pixel if the hints do not give it.
        hints: may give it, or the patch size, from which it follows.
    """
    implied = tile_um / hints.patch_size if hints.patch_size else mpp_of_tile
    mpp = hints.mpp or implied
    coords, patch_size = coords_um / mpp, tile_um / mpp
    if (
        coords.size
        and np.isfinite(coords).all()
        and (abs(coords - coords.round()) < _WHOLE_PIXEL_TOLERANCE).all()
    ):
        coords = coords.round()
    if abs(patch_size - round(patch_size)) < 1e-6 * patch_size:
        patch_size = round(patch_size)
    return PixelScale(coords, Level0Px(patch_size), MicronsPerPixel(mpp))
