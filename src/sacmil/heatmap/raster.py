"""Tiles to pixels: every pixel has the mean of the tiles that cover it, nothing is blurred."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sacmil.heatmap.view import View
from sacmil.results import Scores

_FINENESS = 2**32  # whole numbers, for their sums are exact in any order


def raster(
    scores: Scores, places: npt.NDArray[np.float64], view: View
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """(h, w) means of the tiles over each pixel, 0 where there is none; and where there are any.

    Two sums over the picture's corners, whatever the number of tiles and their overlap.

    Args:
        scores: where the tiles are.
        places: (N,) in 0 to 1.
        view: what is shown.
    """
    corners = _corners(scores, view)
    count = _filled(corners, np.ones(len(places)), view)
    total = _filled(corners, np.rint(places * _FINENESS), view)
    covered = count > 0
    mean = np.divide(total, count * float(_FINENESS), out=np.zeros(count.shape), where=covered)
    return mean, covered


def _corners(scores: Scores, view: View) -> npt.NDArray[np.int64]:
    """(N, 4): left, top, right, bottom in pixels; at least one pixel each way."""
    start = np.rint(view.at(scores.coords))
    # neighbours meet: the end of one is rounded as the beginning of the next
    end = np.maximum(np.rint(view.at(scores.coords + scores.patch_size)), start + 1)
    limits = (view.width, view.height)
    start = np.clip(start, 0, np.subtract(limits, 1))
    return np.concatenate([start, np.clip(end, 1, limits)], axis=1).astype(np.int64)


def _filled(
    corners: npt.NDArray[np.int64], weights: npt.NDArray[np.float64], view: View
) -> npt.NDArray[np.int64]:
    """(h, w): sums of the weights of the rectangles over each pixel."""
    left, top, right, bottom = corners.T
    wide = view.width + 1
    where = np.concatenate([top * wide + left, top * wide + right])
    where = np.concatenate([where, bottom * wide + left, bottom * wide + right])
    signed = np.concatenate([weights, -weights, -weights, weights])
    edges = np.bincount(where, signed, minlength=(view.height + 1) * wide).astype(np.int64)
    return edges.reshape(-1, wide).cumsum(axis=0).cumsum(axis=1)[:-1, :-1]
