"""Variance of an AUC, and a test of two AUCs on one set (DeLong, DeLong and Clarke-Pearson 1988).

The placement value of a positive is the share of negatives below it, that of a negative the share
of positives above it. Their covariances give that of the AUCs. Midranks compute them in
O(n log n) (Sun and Xu 2014).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, rankdata


class DeLongResult(NamedTuple):
    """Two AUCs over the same units, and the test of their difference."""

    first: float
    second: float
    variance: float
    """Of the difference."""
    z: float
    p: float
    """Two-sided; NaN if the variance is zero although the AUCs differ."""


def delong_test(labels: npt.ArrayLike, first: npt.ArrayLike, second: npt.ArrayLike) -> DeLongResult:
    """Test whether two scores of the same units differ in AUC.

    Args:
        labels: (n,), zero or one; the units must be independent of each other.
        first: (n,), scores of the first model.
        second: (n,), scores of the second model.
    """
    areas, covariance = _auc_covariance(labels, np.stack([np.asarray(first), np.asarray(second)]))
    variance = float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    difference = float(areas[0] - areas[1])
    z = _standardize(difference, variance)
    return DeLongResult(float(areas[0]), float(areas[1]), variance, z, float(2 * norm.sf(abs(z))))


def delong_variance(labels: npt.ArrayLike, scores: npt.ArrayLike) -> tuple[float, float]:
    """Return an AUC and its variance; NaN if a class has fewer than two units."""
    areas, covariance = _auc_covariance(labels, np.asarray(scores)[None])
    return float(areas[0]), float(covariance[0, 0])


def _standardize(difference: float, variance: float) -> float:
    if abs(difference) < 1e-12:
        return 0.0
    return difference / math.sqrt(variance) if variance > 1e-15 else math.nan


def _auc_covariance(
    labels: npt.ArrayLike, scores: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the AUC of each row of scores, and their covariance."""
    positive = np.asarray(labels).astype(np.bool_)
    m, n = int(positive.sum()), int((~positive).sum())
    rows = len(scores)
    if min(m, n) < 2:  # one unit has no spread
        return np.full(rows, np.nan), np.full((rows, rows), np.nan)
    ranks = rankdata(scores, axis=1)
    below = (ranks[:, positive] - rankdata(scores[:, positive], axis=1)) / n
    above = 1 - (ranks[:, ~positive] - rankdata(scores[:, ~positive], axis=1)) / m
    covariance = np.atleast_2d(np.cov(below)) / m + np.atleast_2d(np.cov(above)) / n
    return below.mean(1), covariance
