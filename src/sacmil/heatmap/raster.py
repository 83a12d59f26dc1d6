"""Rasterises tile scores: each pixel is the mean of the tiles that cover it, without blur."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sacmil.heatmap.viewport import Viewport
from sacmil.results import InstanceScores

_FIXED_POINT_SCALE = 2**32  # whole numbers, because their sums are exact in any order


def rasterize(
    scores: InstanceScores, positions: npt.NDArray[np.float64], viewport: Viewport
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the mean of the tiles over each pixel, (h, w), and whether it has any tile.

    Pixels without tiles have mean 0. It takes two cumulative sums, whatever the number of tiles
    and their overlap.

    Args:
        scores: positions of the tiles.
        positions: (N,), their positions on the colour scale, 0 to 1.
        viewport: the region of the slide.
    """
    corners = _find_corners(scores, viewport)
    count = _sum_rectangles(corners, np.ones(len(positions)), viewport)
    total = _sum_rectangles(corners, np.rint(positions * _FIXED_POINT_SCALE), viewport)
    covered = count > 0
    mean = np.divide(
        total, count * float(_FIXED_POINT_SCALE), out=np.zeros(count.shape), where=covered
    )
    return mean, covered


def _find_corners(scores: InstanceScores, viewport: Viewport) -> npt.NDArray[np.int64]:
    """Return left, top, right and bottom in pixels, (N, 4); a tile has at least one pixel."""
    start = np.rint(viewport.to_pixels(scores.coords))
    # no gaps: the end of a tile is rounded as the start of the next
    end = np.maximum(np.rint(viewport.to_pixels(scores.coords + scores.patch_size)), start + 1)
    limits = (viewport.width, viewport.height)
    start = np.clip(start, 0, np.subtract(limits, 1))
    return np.concatenate([start, np.clip(end, 1, limits)], axis=1).astype(np.int64)


def _sum_rectangles(
    corners: npt.NDArray[np.int64], weights: npt.NDArray[np.float64], viewport: Viewport
) -> npt.NDArray[np.int64]:
    """Return the sum of the weights of the rectangles over each pixel, (h, w)."""
    left, top, right, bottom = corners.T
    wide = viewport.width + 1
    where = np.concatenate([top * wide + left, top * wide + right])
    where = np.concatenate([where, bottom * wide + left, bottom * wide + right])
    signed = np.concatenate([weights, -weights, -weights, weights])
    edges = np.bincount(where, signed, minlength=(viewport.height + 1) * wide).astype(np.int64)
    return edges.reshape(-1, wide).cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
