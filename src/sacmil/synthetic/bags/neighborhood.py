"""Averages over the neighbourhood of each position, weighted by a Gaussian."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage


class NeighborhoodAverage(NamedTuple):
    """An average for every position."""

    mean: NDArray[np.float64]
    """(N,), of the values around it."""
    size: NDArray[np.float64]
    """(N,), effective number of positions in the average."""


def average_neighborhood(
    positions: NDArray[np.int64],
    values: NDArray[np.float64],
    width: float,
    *,
    include_self: bool = True,
) -> NeighborhoodAverage:
    """Average the values around every position, with more weight on nearer ones.

    Args:
        positions: (N, 2) on the patch grid.
        values: (N,).
        width: standard deviation of the Gaussian, in patches.
        include_self: whether a position counts among its own neighbours.
    """
    cells = tuple((positions - positions.min(0)).T)
    total, tissue = (
        _smooth_values(cells, layer, width) for layer in (values, np.ones(len(positions)))
    )
    if not include_self:
        center = _smooth_values((np.array([0]), np.array([0])), np.ones(1), width)
        total, tissue = total - center * values, np.maximum(tissue - center, 1e-12)
    return NeighborhoodAverage(total / tissue, tissue * 4 * np.pi * width**2)


def _smooth_values(
    cells: tuple[NDArray[np.int64], ...], values: NDArray[np.float64], width: float
) -> NDArray[np.float64]:
    image = np.zeros([int(axis.max()) + 1 for axis in cells])
    image[cells] = values
    smooth: NDArray[np.float64] = ndimage.gaussian_filter(image, width, mode="constant")[cells]
    return smooth
