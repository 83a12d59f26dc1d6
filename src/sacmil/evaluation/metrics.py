"""Metrics over the units of one test set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from sacmil.errors import ConfigError, OptionError, suggest_names
from sacmil.evaluation import weighted

Metric = Callable[[npt.ArrayLike, npt.ArrayLike], float]
"""Of labels (n,) and probabilities (n, C); NaN where it is undefined."""

_PREDICTION_TITLES: Mapping[str, str] = {
    "accuracy": "Accuracy",
    "auc": "AUC",
    "f1": "F1",
    "balanced_accuracy": "Balanced accuracy",
    "average_precision": "Average precision",
    "kappa": "Kappa",
    "brier": "Brier score",
    "calibration_error": "Calibration error",
    "log_loss": "Log loss",
}
"""Titles of prediction metrics in tables, in the order of the columns."""

LOCALIZATION_TITLES: Mapping[str, str] = {
    "localisation_auc": "Localisation AUC",
    "localisation_ap": "Localisation AP",
}
"""Titles of localisation metrics, computed from localisation_by_slide.csv."""

METRIC_TITLES: Mapping[str, str] = {**_PREDICTION_TITLES, **LOCALIZATION_TITLES}
"""Titles of all metrics in tables."""

LOWER_IS_BETTER = frozenset({"brier", "calibration_error", "log_loss"})

WEIGHTED_METRICS: Mapping[str, weighted.WeightedMetric] = {
    name: getattr(weighted, name) for name in _PREDICTION_TITLES
}
"""The prediction metrics for many resamples at once."""


def accuracy(labels: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Return the share of slides whose predicted class is the true one."""
    return float(np.mean(np.asarray(labels) == np.asarray(predicted)))


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Area under the ROC curve of a binary label: ties count half; NaN with one class only.

    >>> auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    0.75
    """
    return _compute_unweighted(weighted.binary_auc, labels, scores)


def average_precision(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Average precision of a binary label; NaN with one class only.

    >>> round(average_precision([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]), 4)
    0.8333
    """
    return _compute_unweighted(weighted.binary_average_precision, labels, scores)


def check_metric(name: str) -> str:
    """Return the name; reject it if there is no such metric."""
    if name not in METRICS:
        raise ConfigError(f"there is no metric {name!r}; {suggest_names(name, METRICS)}")
    return name


def list_metrics(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return checked names of metrics, each once; "all" means all.

    >>> list_metrics("auc"), list_metrics(["auc", "f1", "auc"])
    (('auc',), ('auc', 'f1'))
    """
    if names == "all":
        return tuple(METRICS)
    listed = [names] if isinstance(names, str) else list(names)
    if not listed:
        raise OptionError(f"`metrics` is empty; expected names among {', '.join(METRICS)}")
    return tuple(dict.fromkeys(check_metric(name) for name in listed))


def _compute_unweighted(
    metric: Callable[[npt.NDArray[np.bool_], weighted.Floats, weighted.Floats], weighted.Floats],
    labels: npt.ArrayLike,
    scores: npt.ArrayLike,
) -> float:
    positive = np.asarray(labels).astype(np.bool_)
    values = np.asarray(scores, dtype=np.float64)
    return float(metric(positive, values, np.ones((1, len(positive))))[0])


def _make_metric(name: str) -> Metric:
    def metric(labels: npt.ArrayLike, probabilities: npt.ArrayLike) -> float:
        truth = np.asarray(labels, dtype=np.int64)
        values = np.asarray(probabilities, dtype=np.float64)
        return float(WEIGHTED_METRICS[name](truth, values, np.ones((1, len(truth))))[0])

    metric.__name__ = name
    metric.__doc__ = WEIGHTED_METRICS[name].__doc__
    return metric


METRICS: Mapping[str, Metric] = {name: _make_metric(name) for name in _PREDICTION_TITLES}
