"""Rasterise polygons."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sacmil.errors import MissingExtraError
from sacmil.synthetic.slides.blob import Polygon


def fill_polygons(
    polygons: Iterable[Polygon],
    size: tuple[int, int],
    step: float = 1.0,
    origin: tuple[float, float] = (0.0, 0.0),
) -> npt.NDArray[np.bool_]:
    """Return a mask of the pixels inside any of the polygons.

    Args:
        polygons: in level-0 pixels.
        size: width and height of the window, in level-0 pixels.
        step: level-0 pixels per pixel.
        origin: x and y of the window's corner.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise MissingExtraError("slides", "drawing slides") from None
    mask = Image.new("1", (max(1, round(size[0] / step)), max(1, round(size[1] / step))))
    draw = ImageDraw.Draw(mask)
    for polygon in polygons:
        points = (polygon - origin) / step - 0.5  # a pixel's coordinates are those of its center
        draw.polygon([(x, y) for x, y in points.tolist()], fill=1)
    return np.array(mask, dtype=bool)
