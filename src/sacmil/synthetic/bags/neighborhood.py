"""What stands around a place: averages over a soft disc of the tissue there is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage


class NeighborhoodAverage(NamedTuple):
    """An average for every place."""

    mean: NDArray[np.float64]
    """(N,), of the values about it."""
    size: NDArray[np.float64]
    """(N,), over how many places, as far as a soft disc has a number."""


def average_neighborhood(
    positions: NDArray[np.int64],
    values: NDArray[np.float64],
    width: float,
    *,
    include_self: bool = True,
) -> NeighborhoodAverage:
    """Average values about every place, nearer ones more.

    Args:
        positions: (N, 2) on the patch grid.
        values: (N,).
        width: standard deviation of the disc, in patches.
        include_self: whether a place counts among its own neighbours.
    """
    at = tuple((positions - positions.min(0)).T)
    total, tissue = (
        _smooth_values(at, layer, width) for layer in (values, np.ones(len(positions)))
    )
    if not include_self:
        centre = _smooth_values((np.array([0]), np.array([0])), np.ones(1), width)
        total, tissue = total - centre * values, np.maximum(tissue - centre, 1e-12)
    return NeighborhoodAverage(total / tissue, tissue * 4 * np.pi * width**2)


def _smooth_values(
    cells: tuple[NDArray[np.int64], ...], values: NDArray[np.float64], width: float
) -> NDArray[np.float64]:
    image = np.zeros([int(axis.max()) + 1 for axis in cells])
    image[cells] = values
    smooth: NDArray[np.float64] = ndimage.gaussian_filter(image, width, mode="constant")[cells]
    return smooth
