"""Metrics of several binary labels per row, some of them missing, over many resamples at once.

Every function takes targets (n, L) of 0, 1 and NaN for a missing cell, probabilities (n, L) and
weights (B, n), the number of times each row is in each resample. A missing cell has no weight for
its label. ``weighted_label_…`` returns (B, L), NaN where undefined. ``weighted_macro_…`` returns
(B,), the mean over the labels that have both values in the resample, NaN if none has.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sacmil.metrics.classification import Labels, binary_auc, binary_average_precision

Floats = npt.NDArray[np.float64]
BinaryMetric = Callable[[Labels, Floats, Floats], Floats]
"""Of a label (n,), scores (n,) and weights (B, n): (B,)."""


def weighted_label_auc(targets: Floats, probabilities: Floats, weights: Floats) -> Floats:
    """Area under the ROC curve of each label."""
    return _compute_by_label(binary_auc, targets, probabilities, weights)


def weighted_label_average_precision(
    targets: Floats, probabilities: Floats, weights: Floats
) -> Floats:
    """Average precision of each label."""
    return _compute_by_label(binary_average_precision, targets, probabilities, weights)


def weighted_label_f1(
    targets: Floats, probabilities: Floats, weights: Floats, thresholds: npt.ArrayLike = 0.5
) -> Floats:
    """2 hits / (2 hits + misses + false alarms) of each label.

    Args:
        targets: 0, 1 or NaN (n, L).
        probabilities: of each label (n, L).
        weights: how often each row is in each resample (B, n).
        thresholds: of each label (L,), or one for all; a label is predicted from there on.
    """
    is_predicted = (probabilities >= np.asarray(thresholds)).astype(np.float64)
    return _compute_by_label(_binary_f1, targets, is_predicted, weights)


def weighted_macro_auc(targets: Floats, probabilities: Floats, weights: Floats) -> Floats:
    """Mean area under the ROC curve of the labels."""
    return _average(weighted_label_auc(targets, probabilities, weights), targets, weights)


def weighted_macro_average_precision(
    targets: Floats, probabilities: Floats, weights: Floats
) -> Floats:
    """Mean average precision of the labels."""
    by_label = weighted_label_average_precision(targets, probabilities, weights)
    return _average(by_label, targets, weights)


def weighted_macro_f1(
    targets: Floats, probabilities: Floats, weights: Floats, thresholds: npt.ArrayLike = 0.5
) -> Floats:
    """Mean F1 of the labels; thresholds as for ``weighted_label_f1``."""
    by_label = weighted_label_f1(targets, probabilities, weights, thresholds)
    return _average(by_label, targets, weights)


def weighted_label_count(targets: Floats, weights: Floats) -> Floats:
    """Return the number of labels that have both values in each resample, (B,)."""
    counts: Floats = _has_both_values(targets, weights).sum(1, dtype=np.float64)
    return counts


def _compute_by_label(
    metric: BinaryMetric, targets: Floats, scores: Floats, weights: Floats
) -> Floats:
    """Compute a metric of each label over the rows where it is not missing."""
    is_observed = ~np.isnan(targets)
    columns = zip(targets.T, scores.T, is_observed.T, strict=True)
    return np.stack([metric(y[o] == 1, s[o], weights[:, o]) for y, s, o in columns], axis=1)


def _binary_f1(positive: Labels, is_predicted: Floats, weights: Floats) -> Floats:
    hits = weights @ (positive * is_predicted)
    return _ratio(2 * hits, weights @ (positive + is_predicted))


def _average(by_label: Floats, targets: Floats, weights: Floats) -> Floats:
    """Return the mean over the labels that have both values in a resample."""
    has_both = _has_both_values(targets, weights)
    return _ratio(np.where(has_both, by_label, 0).sum(1), has_both.sum(1))


def _has_both_values(targets: Floats, weights: Floats) -> npt.NDArray[np.bool_]:
    """Return whether each label is present and absent in each resample, (B, L)."""
    found: npt.NDArray[np.bool_] = (weights @ (targets == 1) > 0) & (weights @ (targets == 0) > 0)
    return found


def _ratio(above: Floats, below: Floats | npt.NDArray[np.int64]) -> Floats:
    return above / np.where(below > 0, below, np.nan)
