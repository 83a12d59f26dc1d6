"""Label distribution smoothing: rare targets weigh more (Yang et al. 2021, El Nahhas et al. 2024).

A bin's count is smoothed over its neighbors, and a target weighs one over the count of its bin.
The loss of El Nahhas et al. is the mean of (1 + weight) (prediction − target)².
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.ndimage import convolve1d, gaussian_filter1d

Floats = npt.NDArray[np.float64]

KERNEL_WIDTH = 5
KERNEL_SIGMA = 2.0
"""In bins."""
MAX_BINS = 10_000


def smoothing_kernel() -> Floats:
    """Return the Gaussian by which counts of bins are smoothed; its peak is 1.

    >>> smoothing_kernel().round(3).tolist()
    [0.858, 0.946, 1.0, 0.946, 0.858]
    """
    pulse = np.zeros(KERNEL_WIDTH)
    pulse[KERNEL_WIDTH // 2] = 1
    kernel: Floats = gaussian_filter1d(pulse, KERNEL_SIGMA)
    kernel /= kernel.max()
    return kernel


def fit_density(targets: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Learn bins and their weights from training targets.

    Returns:
        The upper edge of each bin (E,), of which the first is the smallest target, and the weight
        of each bin (E,).
    """
    values = np.asarray(targets, dtype=np.float64)
    edges = _find_edges(values)
    counts = np.bincount(_find_bins(values, edges), minlength=len(edges))
    # of integers, so the sums are truncated as in the published code
    smooth = convolve1d(counts, smoothing_kernel(), mode="constant")
    return edges, 1 / np.maximum(smooth, 1)


def _find_edges(values: Floats) -> Floats:
    """Return numpy's automatic edges, unless a far outlier would make millions of bins."""
    high, low = np.percentile(values, [75, 25])
    width = 2 * (high - low) / np.cbrt(len(values))  # of Freedman and Diaconis
    too_many = np.ptp(values) > MAX_BINS * width > 0
    return np.histogram_bin_edges(values, MAX_BINS if too_many else "auto")


def density_weight(values: npt.ArrayLike, edges: Floats, bin_weights: Floats) -> Floats:
    """Return the weight of each value; one outside the training range has that of its nearest bin.

    Args:
        values: of any shape.
        edges: of ``fit_density``.
        bin_weights: of ``fit_density``.
    """
    return bin_weights[_find_bins(np.asarray(values, dtype=np.float64), edges)]


def _find_bins(values: Floats, edges: Floats) -> npt.NDArray[np.intp]:
    """Return the first bin whose upper edge a value does not exceed."""
    return np.minimum(np.searchsorted(edges, values, side="left"), len(edges) - 1)
