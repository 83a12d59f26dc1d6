"""Encode pixels as scanners do: a tiled pyramid of JPEGs with its resolution."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from sacmil.errors import MissingExtraError
from sacmil.synthetic.slides.stain import Pixels

_LEVELS = 3
_TILE = 256


def encode_pyramid(pixels: Pixels, mpp: float) -> bytes:
    """Return the bytes of a TIFF with levels of full, half and quarter size.

    Args:
        pixels: of level 0.
        mpp: microns per pixel of level 0.
    """
    try:
        import tifffile
        from PIL import Image
    except ImportError:
        raise MissingExtraError("slides", "drawing slides") from None
    options: dict[str, Any] = {
        "tile": (_TILE, _TILE),
        "photometric": "rgb",
        "compression": "jpeg",
        "compressionargs": {"level": 88, "outcolorspace": "ycbcr"},
        "subsampling": (2, 2),
        "metadata": None,
        "software": False,
        "resolutionunit": "CENTIMETER",
    }
    buffer = io.BytesIO()
    level = Image.fromarray(pixels)
    with tifffile.TiffWriter(buffer) as file:
        for number in range(_LEVELS):
            resolution = 10_000 / (mpp * 2**number)
            file.write(
                np.asarray(level),
                subfiletype=1 if number else 0,
                resolution=(resolution, resolution),
                **options,
            )
            level = level.reduce(2)
    return buffer.getvalue()
