"""What stands around a place: averages over a soft disc of the tissue there is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage


class Around(NamedTuple):
    """An average for every place."""

    mean: NDArray[np.float64]
    """(N,), of the values about it."""
    size: NDArray[np.float64]
    """(N,), over how many places, as far as a soft disc has a number."""


def around(
    places: NDArray[np.int64], values: NDArray[np.float64], width: float, *, itself: bool = True
) -> Around:
    """Average values about every place, nearer ones more.

    Args:
        places: (N, 2) on the patch grid.
        values: (N,).
        width: standard deviation of the disc, in patches.
        itself: whether a place counts among its own neighbours.
    """
    at = tuple((places - places.min(0)).T)
    total, tissue = (_smooth(at, layer, width) for layer in (values, np.ones(len(places))))
    if not itself:
        centre = _smooth((np.array([0]), np.array([0])), np.ones(1), width)
        total, tissue = total - centre * values, np.maximum(tissue - centre, 1e-12)
    return Around(total / tissue, tissue * 4 * np.pi * width**2)


def _smooth(
    at: tuple[NDArray[np.int64], ...], values: NDArray[np.float64], width: float
) -> NDArray[np.float64]:
    image = np.zeros([int(axis.max()) + 1 for axis in at])
    image[at] = values
    smooth: NDArray[np.float64] = ndimage.gaussian_filter(image, width, mode="constant")[at]
    return smooth
