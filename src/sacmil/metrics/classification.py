"""Metrics of classes over one test set, of the data itself or of many resamples at once.

A resample is a row of weights over the test rows. Every function ``weighted_…`` takes labels (n,),
probabilities (n, C) and weights (B, n), the number of times each row is in the resample. It returns
(B,), the metric of rows repeated that often. NaN means undefined, for most metrics because the
resample has one class only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from sacmil.metrics.metric import Formula, Metric

Labels = npt.NDArray[np.int64 | np.bool_]
Floats = npt.NDArray[np.float64]
MetricFunction = Callable[[npt.ArrayLike, npt.ArrayLike], float]
"""Of labels (n,) and probabilities (n, C); NaN where it is undefined."""
WeightedMetric = Callable[[Labels, Floats, Floats], Floats]

BINS = 15
"""Bins of the calibration error, of equal width as in Guo et al. 2017."""


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Area under the ROC curve of a binary label: ties count half; NaN with one class only.

    >>> auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    0.75
    """
    return _compute_unweighted(binary_auc, np.asarray(labels) != 0, scores)


def average_precision(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Average precision of a binary label; NaN with one class only.

    >>> round(average_precision([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]), 4)
    0.8333
    """
    return _compute_unweighted(binary_average_precision, np.asarray(labels) != 0, scores)


# --- many resamples at once ----------------------------------------------------------------------


def weighted_accuracy(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Share of rows whose most probable class is the true one."""
    right = probabilities.argmax(1) == labels
    return _weighted_mean(right.astype(np.float64), weights)


def weighted_balanced_accuracy(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Mean over the true classes of the share that is recognised."""
    counts = confusion_matrix(labels, probabilities, weights)
    return _mean_of_defined(_ratio(_diagonal(counts), counts.sum(2)))


def weighted_f1(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Mean over the classes, true or predicted, of 2 hits / (2 hits + misses + false alarms)."""
    counts = confusion_matrix(labels, probabilities, weights)
    return _mean_of_defined(_ratio(2 * _diagonal(counts), counts.sum(1) + counts.sum(2)))


def weighted_kappa(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Cohen's kappa, a confusion costing the squared distance of the two classes."""
    counts = confusion_matrix(labels, probabilities, weights)
    classes = np.arange(counts.shape[1])
    cost = np.square(classes[:, None] - classes).astype(np.float64)
    by_chance = np.einsum("bi,ij,bj->b", counts.sum(2), cost, counts.sum(1))
    found = (counts * cost).sum((1, 2)) * counts.sum((1, 2))
    agreement: Floats = 1 - _ratio(found, by_chance)
    return agreement


def weighted_auc(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Area under the ROC curve of class 1, or the mean over more classes, each against the rest."""
    return _average_one_vs_rest(binary_auc, labels, probabilities, weights)


def weighted_average_precision(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Average precision of class 1, or the mean over more classes, each against the rest."""
    return _average_one_vs_rest(binary_average_precision, labels, probabilities, weights)


def weighted_brier(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Mean squared error of class 1's probability, or summed over more classes."""
    if probabilities.shape[1] == 2:
        return _weighted_mean(np.square(probabilities[:, 1] - labels), weights)
    truth = np.eye(probabilities.shape[1])[labels]
    return _weighted_mean(np.square(probabilities - truth).sum(1), weights)


def weighted_log_loss(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Mean negative logarithm of the true class's probability, which is clipped off zero."""
    least = np.finfo(np.float64).eps
    own = np.clip(probabilities[np.arange(len(labels)), labels], least, 1 - least)
    return _weighted_mean(-np.log(own), weights)


def weighted_calibration_error(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Mean gap between confidence and accuracy over the bins of confidence."""
    confidence = probabilities.max(1)
    gap = (probabilities.argmax(1) == labels) - confidence
    # a bin includes its upper edge, so that a confidence of 1 has a bin
    bins = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], confidence, side="left")
    gaps = weights @ (gap[:, None] * np.eye(BINS)[bins])
    return _ratio(np.abs(gaps).sum(1), weights.sum(1))


def confusion_matrix(labels: Labels, probabilities: Floats, weights: Floats) -> Floats:
    """Return counts (B, C, C): true class, then predicted class."""
    size = probabilities.shape[1]
    pair = labels * size + probabilities.argmax(1)
    counts: Floats = weights @ np.eye(size * size)[pair]
    return counts.reshape(-1, size, size)


def binary_auc(positive: Labels, scores: Floats, weights: Floats) -> Floats:
    """Area under the ROC curve, the share of ordered pairs with ties as a half: (B,)."""
    hits, alarms = cumulate_counts(positive, scores, weights)
    area = (np.diff(alarms) * (hits[:, 1:] + hits[:, :-1])).sum(1) / 2
    return _ratio(area, _count_pairs(hits, alarms, scores))


def binary_average_precision(positive: Labels, scores: Floats, weights: Floats) -> Floats:
    """Precision at each distinct score, averaged over the recall gained there: (B,)."""
    hits, alarms = cumulate_counts(positive, scores, weights)
    seen = hits + alarms
    precision = np.divide(hits, seen, out=np.zeros_like(hits), where=seen > 0)
    gained = (np.diff(hits) * precision[:, 1:]).sum(1)
    return _ratio(gained * alarms[:, -1], _count_pairs(hits, alarms, scores))


def cumulate_counts(positive: Labels, scores: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return cumulative positives and negatives at each distinct score, highest first, from 0."""
    order = np.argsort(-scores, kind="stable")
    ranked, falling = weights[:, order], scores[order]
    last = np.ones(len(scores), dtype=np.bool_)  # of the rows with its score
    last[:-1] = falling[1:] != falling[:-1]
    hits = (ranked * positive[order]).cumsum(1)
    alarms = ranked.cumsum(1) - hits
    none = np.zeros((len(weights), 1))
    return np.hstack([none, hits[:, last]]), np.hstack([none, alarms[:, last]])


def _count_pairs(hits: Floats, alarms: Floats, scores: Floats) -> Floats:
    """Return the number of pairs of a positive and a negative; NaN if a score is NaN."""
    pairs: Floats = hits[:, -1] * alarms[:, -1] + (np.nan if np.isnan(scores).any() else 0)
    return pairs


def _average_one_vs_rest(
    metric: WeightedMetric, labels: Labels, probabilities: Floats, weights: Floats
) -> Floats:
    if probabilities.shape[1] == 2:
        return metric(labels == 1, probabilities[:, 1], weights)
    each = [metric(labels == c, p, weights) for c, p in enumerate(probabilities.T)]
    return _mean_of_defined(np.stack(each, axis=1))


def _weighted_mean(values: Floats, weights: Floats) -> Floats:
    return _ratio(weights @ values, weights.sum(1))


def _mean_of_defined(values: Floats) -> Floats:
    """Return the mean over the classes that occur; absent classes are NaN."""
    defined = ~np.isnan(values)
    return _ratio(np.where(defined, values, 0).sum(1), defined.sum(1))


def _ratio(above: Floats, below: npt.NDArray[np.generic]) -> Floats:
    undefined = np.full_like(above, np.nan, dtype=np.float64)
    ratio: Floats = np.divide(above, below, out=undefined, where=below != 0)
    return ratio


def _diagonal(counts: Floats) -> Floats:
    return np.diagonal(counts, axis1=1, axis2=2)


def _of_classes(metric: WeightedMetric) -> Formula:
    """Return the formula of a metric whose only target is the index of a class."""
    return lambda targets, values, weights: metric(targets[:, 0].astype(np.int64), values, weights)


WEIGHTED_METRICS: Mapping[str, WeightedMetric] = {
    "accuracy": weighted_accuracy,
    "auc": weighted_auc,
    "f1": weighted_f1,
    "balanced_accuracy": weighted_balanced_accuracy,
    "average_precision": weighted_average_precision,
    "kappa": weighted_kappa,
    "brier": weighted_brier,
    "calibration_error": weighted_calibration_error,
    "log_loss": weighted_log_loss,
}
"""The metrics for many resamples at once, in the order of columns in tables."""

CLASSIFICATION_METRICS: Mapping[str, Metric] = {
    "accuracy": Metric(
        "Accuracy",
        _of_classes(weighted_accuracy),
        scale="classes",
        is_additive=True,
        fold_weight="rows",
    ),
    # For the AUC: whether two patients' predictions are swapped alike or not, the difference of a
    # pair of units is a sum of one term for each patient.
    "auc": Metric(
        "AUC", _of_classes(weighted_auc), scale="ranks", is_additive=True, fold_weight="pairs"
    ),
    "f1": Metric("F1", _of_classes(weighted_f1), scale="classes"),
    "balanced_accuracy": Metric(
        "Balanced accuracy",
        _of_classes(weighted_balanced_accuracy),
        scale="classes",
        is_additive=True,
    ),
    "average_precision": Metric(
        "Average precision", _of_classes(weighted_average_precision), scale="ranks"
    ),
    "kappa": Metric("Kappa", _of_classes(weighted_kappa), scale="classes"),
    "brier": Metric(
        "Brier score",
        _of_classes(weighted_brier),
        lower_is_better=True,
        is_additive=True,
        fold_weight="rows",
    ),
    # Duplicated rows look like bad calibration, which biases it up.
    "calibration_error": Metric(
        "Calibration error",
        _of_classes(weighted_calibration_error),
        lower_is_better=True,
        has_interval=False,
    ),
    "log_loss": Metric(
        "Log loss",
        _of_classes(weighted_log_loss),
        lower_is_better=True,
        is_additive=True,
        fold_weight="rows",
    ),
}
"""What evaluation needs of each."""


def _compute_unweighted(
    metric: WeightedMetric, labels: npt.ArrayLike, values: npt.ArrayLike
) -> float:
    truth = np.asarray(labels, dtype=np.int64)
    once = np.ones((1, len(truth)))
    return float(metric(truth, np.asarray(values, dtype=np.float64), once)[0])


METRICS: Mapping[str, MetricFunction] = {
    name: partial(_compute_unweighted, metric) for name, metric in WEIGHTED_METRICS.items()
}
"""The metrics of the data itself."""
