"""Tiles to pixels: every pixel has the mean of the tiles that cover it, nothing is blurred."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sacmil.heatmap.viewport import Viewport
from sacmil.results import InstanceScores

_FIXED_POINT_SCALE = 2**32  # whole numbers, for their sums are exact in any order


def rasterize(
    scores: InstanceScores, positions: npt.NDArray[np.float64], viewport: Viewport
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """(h, w) means of the tiles over each pixel, 0 where there is none; and where there are any.

    Two sums over the picture's corners, whatever the number of tiles and their overlap.

    Args:
        scores: where the tiles are.
        positions: (N,) in 0 to 1.
        viewport: what is shown.
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
    """(N, 4): left, top, right, bottom in pixels; at least one pixel each way."""
    start = np.rint(viewport.to_pixels(scores.coords))
    # neighbours meet: the end of one is rounded as the beginning of the next
    end = np.maximum(np.rint(viewport.to_pixels(scores.coords + scores.patch_size)), start + 1)
    limits = (viewport.width, viewport.height)
    start = np.clip(start, 0, np.subtract(limits, 1))
    return np.concatenate([start, np.clip(end, 1, limits)], axis=1).astype(np.int64)


def _sum_rectangles(
    corners: npt.NDArray[np.int64], weights: npt.NDArray[np.float64], viewport: Viewport
) -> npt.NDArray[np.int64]:
    """(h, w): sums of the weights of the rectangles over each pixel."""
    left, top, right, bottom = corners.T
    wide = viewport.width + 1
    where = np.concatenate([top * wide + left, top * wide + right])
    where = np.concatenate([where, bottom * wide + left, bottom * wide + right])
    signed = np.concatenate([weights, -weights, -weights, weights])
    edges = np.bincount(where, signed, minlength=(viewport.height + 1) * wide).astype(np.int64)
    return edges.reshape(-1, wide).cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
