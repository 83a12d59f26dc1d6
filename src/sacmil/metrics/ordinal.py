"""Metrics of ordered levels 0..K−1, of the data itself or of many resamples at once.

``weights`` (B, n) says how often each row is in each resample, as in ``metrics.classification``.
Labels and predicted levels are integers (n,).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sacmil.metrics import regression
from sacmil.metrics.classification import binary_auc, weighted_kappa

Levels = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def predict_level(above: npt.ArrayLike) -> Levels:
    """Return the level of each row: the number of thresholds passed with probability over 1/2.

    Args:
        above: probability that the level is above k, for k = 0..K−2: (n, K−1).

    >>> predict_level([[0.9, 0.6], [0.9, 0.5], [0.2, 0.1]]).tolist()
    [2, 1, 0]
    """
    levels: Levels = (np.asarray(above) > 0.5).sum(1)
    return levels


def quadratic_kappa(labels: npt.ArrayLike, predicted: npt.ArrayLike, levels: int) -> float:
    """Cohen's kappa with squared distances; NaN if all labels and predictions are one level.

    >>> quadratic_kappa([0, 1, 2], [0, 1, 2], 3)
    1.0
    """
    truth = np.asarray(labels, dtype=np.int64)
    once = np.ones((1, len(truth)))
    guess = np.asarray(predicted, dtype=np.int64)
    return float(weighted_quadratic_kappa(truth, guess, once, levels)[0])


def mae(labels: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Mean distance between level and predicted level.

    >>> mae([0, 1, 2], [0, 2, 0])
    1.0
    """
    return regression.mae(labels, predicted)


def weighted_quadratic_kappa(
    labels: Levels, predicted: Levels, weights: Floats, levels: int
) -> Floats:
    """Cohen's kappa, a confusion costing the squared distance of the two levels."""
    return weighted_kappa(labels, np.eye(levels)[predicted], weights)


def weighted_mae(labels: Levels, predicted: Levels, weights: Floats) -> Floats:
    """Mean distance between level and predicted level."""
    return regression.weighted_mae(labels.astype(np.float64), predicted.astype(np.float64), weights)


def weighted_threshold_auc(labels: Levels, above_k: Floats, weights: Floats, k: int) -> Floats:
    """Area under the ROC curve of "the level is above k".

    Args:
        labels: levels (n,).
        above_k: probability that the level is above k (n,).
        weights: how often each row is in each resample (B, n).
        k: the threshold, 0..K−2.
    """
    return binary_auc(labels > k, above_k, weights)
