"""Metrics of predicted numbers over the units of one test set, or of many resamples at once.

Every function ``weighted_…`` takes targets (n,), predictions (n,) and weights (B, n), the number of
times each row is in each resample. It returns (B,), the metric of rows repeated that often. NaN
means undefined: no row, a number that is not finite, or a constant where a metric compares spreads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
WeightedMetric = Callable[[Floats, Floats, Floats], Floats]

BLOCK_SIZE = 2**20
"""Weights that are processed at once: few enough for the cache, and for any memory."""


def r2(targets: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Share of the targets' variance that is explained; NaN if the targets are constant.

    >>> r2([1, 2, 3], [1, 2, 4])
    0.5
    """
    return _compute_unweighted(weighted_r2, targets, predictions)


def mae(targets: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Mean absolute error.

    >>> mae([1, 2, 3], [1, 1, 5])
    1.0
    """
    return _compute_unweighted(weighted_mae, targets, predictions)


def rmse(targets: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Root of the mean squared error.

    >>> rmse([1, 2], [4, -1])
    3.0
    """
    return _compute_unweighted(weighted_rmse, targets, predictions)


def pearson(targets: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Pearson's correlation; NaN if either is constant.

    >>> round(pearson([1, 2, 3], [1, 2, 4]), 4)
    0.982
    """
    return _compute_unweighted(weighted_pearson, targets, predictions)


def spearman(targets: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Spearman's rank correlation, ties with their middle rank; NaN if either is constant.

    >>> spearman([1, 2, 3], [1, 2, 40])
    1.0
    """
    return _compute_unweighted(weighted_spearman, targets, predictions)


# --- many resamples at once ----------------------------------------------------------------------


def weighted_r2(targets: Floats, predictions: Floats, weights: Floats) -> Floats:
    """1 − squared errors / squared distances from the mean of the resampled targets."""
    return _compute_in_blocks(_r2, targets, predictions, weights)


def weighted_mae(targets: Floats, predictions: Floats, weights: Floats) -> Floats:
    """Mean absolute error."""
    return _compute_in_blocks(_mean_absolute_error, targets, predictions, weights)


def weighted_rmse(targets: Floats, predictions: Floats, weights: Floats) -> Floats:
    """Root of the mean squared error."""
    return np.sqrt(_compute_in_blocks(_mean_squared_error, targets, predictions, weights))


def weighted_pearson(targets: Floats, predictions: Floats, weights: Floats) -> Floats:
    """Pearson's correlation within each resample."""
    return _compute_in_blocks(_pearson, targets, predictions, weights)


def weighted_spearman(targets: Floats, predictions: Floats, weights: Floats) -> Floats:
    """Pearson's correlation of the ranks that rows have within each resample."""
    return _compute_in_blocks(_spearman, targets, predictions, weights)


def _r2(targets: Floats, predictions: Floats, weights: Floats) -> Floats:
    squared_errors = weights @ np.square(targets - predictions)
    return 1 - _ratio(squared_errors, _row_sums(weights, np.square(_center(targets, weights))))


def _mean_absolute_error(targets: Floats, predictions: Floats, weights: Floats) -> Floats:
    return _ratio(weights @ np.abs(targets - predictions), weights.sum(1))


def _mean_squared_error(targets: Floats, predictions: Floats, weights: Floats) -> Floats:
    return _ratio(weights @ np.square(targets - predictions), weights.sum(1))


def _pearson(targets: Floats, predictions: Floats, weights: Floats) -> Floats:
    return _correlate(_center(targets, weights), _center(predictions, weights), weights)


def _spearman(targets: Floats, predictions: Floats, weights: Floats) -> Floats:
    return _correlate(_rank(targets, weights), _rank(predictions, weights), weights)


def _center(values: Floats, weights: Floats) -> Floats:
    """Return values minus their mean in each resample: (B, n), exact zeros if all are equal."""
    # measured from a row of the resample, so that no value outside it costs precision
    distances = values - values[weights.argmax(1), None]
    return distances - _ratio(_row_sums(weights, distances), weights.sum(1))[:, None]


def _rank(values: Floats, weights: Floats) -> Floats:
    """Return middle ranks minus their mean in each resample: (B, n), exact multiples of a half."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    rising = weights[:, np.argsort(group, kind="stable")]
    counts = np.add.reduceat(rising, np.cumsum(sizes) - sizes, axis=1)
    ranks: Floats = counts.cumsum(1) - (counts + counts.sum(1, keepdims=True)) / 2
    return ranks[:, group]


def _correlate(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Return the correlation of deviations from the mean, all three (B, n)."""
    weighted_x = weights * x
    spread = np.sqrt(_row_sums(weighted_x, x) * _row_sums(weights, np.square(y)))
    correlation: Floats = np.clip(_ratio(_row_sums(weighted_x, y), spread), -1, 1)
    return correlation


def _row_sums(a: Floats, b: Floats) -> Floats:
    sums: Floats = np.einsum("bn,bn->b", a, b)
    return sums


def _ratio(above: Floats, below: Floats) -> Floats:
    return above / np.where(below > 0, below, np.nan)


def _compute_in_blocks(
    metric: WeightedMetric, targets: Floats, predictions: Floats, weights: Floats
) -> Floats:
    """Compute a metric of as many resamples at once as fit into a block."""
    if not len(targets) or not np.isfinite([targets, predictions]).all():
        return np.full(len(weights), np.nan)
    step = max(1, BLOCK_SIZE // len(targets))
    starts = range(0, max(1, len(weights)), step)
    return np.concatenate([metric(targets, predictions, weights[i : i + step]) for i in starts])


def _compute_unweighted(
    metric: WeightedMetric, targets: npt.ArrayLike, predictions: npt.ArrayLike
) -> float:
    truth = np.asarray(targets, dtype=np.float64)
    once = np.ones((1, len(truth)))
    return float(metric(truth, np.asarray(predictions, dtype=np.float64), once)[0])
