"""Rounded shapes of an exact area, for tissue, clusters and glands."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Polygon = npt.NDArray[np.float64]
"""(vertices, 2): x, y in level-0 pixels; the last vertex is joined to the first."""


@dataclass(frozen=True, eq=False)
class Blob:
    """A shape around its center."""

    center: npt.NDArray[np.float64]
    """(2,), x and y."""
    radius: float
    """Of the disc of the same area."""
    outline: Polygon

    def compute_window(self, margin: float, size: tuple[int, int]) -> tuple[slice, slice]:
        """Return the rows and columns of an image that contain the blob and a margin."""
        low = np.floor(self.outline.min(axis=0) - margin).astype(int)
        high = np.ceil(self.outline.max(axis=0) + margin).astype(int) + 1
        x, y = (
            slice(max(0, first), max(0, min(last, most)))
            for first, last, most in zip(low.tolist(), high.tolist(), size, strict=True)
        )
        return y, x


def make_blob(
    center: npt.ArrayLike,
    radius: float,
    random: np.random.Generator,
    *,
    unevenness: float = 0.12,
    stretch: float = 1.0,
    vertices: int = 96,
) -> Blob:
    """Make a blob with lobes of random size and the area of a disc.

    Args:
        center: x and y.
        radius: of that disc.
        random: of the lobes.
        unevenness: deviation of the border from an ellipse, as a share of the radius.
        stretch: ratio of length to width.
        vertices: of the outline.
    """
    angle = np.linspace(0, 2 * math.pi, vertices, endpoint=False)
    waves = np.arange(2, 8)
    heights = unevenness * random.normal(size=len(waves)) / np.sqrt(waves)
    turns = random.uniform(0, 2 * math.pi, len(waves))
    distance = 1 + (heights[:, None] * np.cos(waves[:, None] * angle + turns[:, None])).sum(0)
    points = np.maximum(distance, 0.4)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    points *= [math.sqrt(stretch), 1 / math.sqrt(stretch)]
    scale = radius * math.sqrt(math.pi / polygon_area(points))
    origin = np.asarray(center, np.float64)
    return Blob(origin, radius, origin + scale * points)


def polygon_area(polygon: Polygon) -> float:
    """Return the enclosed area, in squares of the polygon's unit.

    >>> polygon_area(np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 3.0], [0.0, 3.0]]))
    6.0
    """
    x, y = polygon.T
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)
