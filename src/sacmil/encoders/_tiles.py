"""Checks the input of encoders, the same way for every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.encoders._base import EncoderCard
from sacmil.errors import EncoderError


def check_tiles(
    tiles: npt.NDArray[Any], card: EncoderCard, *, any_side: bool = False
) -> npt.NDArray[np.uint8]:
    """Return the tiles in one writable block of memory, which both engines read fastest."""
    side = tiles.shape[1] if any_side and tiles.ndim == 4 and tiles.shape[1] else card.input_px
    if tiles.dtype != np.uint8 or tiles.shape[1:] != (side, side, 3):
        raise EncoderError(
            f"{card.name} got tiles {tiles.shape} of {tiles.dtype}; "
            f"expected (B, {side}, {side}, 3) of uint8, RGB: resize them first"
        )
    return np.require(tiles, requirements=["C", "W"])
