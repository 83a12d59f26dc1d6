"""Metrics of each model: mean and standard deviation over folds, and an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sacmil.evaluation.fold_results import FoldResult, collect_fold_results, compute_fold_metrics
from sacmil.evaluation.intervals import (
    DrawCounts,
    check_level_and_draws,
    fold_means,
    percentile_interval,
    resample_patients,
)
from sacmil.evaluation.metrics import check_metric
from sacmil.results import Predictions

DEFAULT_METRICS = ("accuracy", "auc", "f1")
"""The metrics of the paper's tables, in their order."""


@dataclass(frozen=True)
class MetricEstimate:
    """Estimate of one metric of one model; undefined values are NaN."""

    values: tuple[float, ...]
    """One per fold, each the mean over seeds."""
    mean: float
    """Over folds."""
    std: float
    """Sample standard deviation over folds, as in the paper; NaN for a single fold."""
    low: float
    high: float
    """Bootstrap interval of the mean over patients."""


def summarize(
    predictions: Predictions,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> dict[str, dict[str, MetricEstimate]]:
    """Estimate every metric of every model over the test rows.

    Args:
        predictions: of one or more models; rows of other splits than test are left out.
        metrics: names in METRICS.
        level: confidence level of the intervals.
        draws: number of resamples of patients.
        seed: of the resampling.
    """
    check_level_and_draws(level=level, draws=draws)
    names = [check_metric(name) for name in metrics]
    estimates = {}
    for model, fold_results in collect_fold_results(predictions).items():
        counts = resample_patients(fold_results, draws=draws, seed=seed)
        estimates[model] = {
            name: _make_estimate(fold_results, counts, name, level) for name in names
        }
    return estimates


def _make_estimate(
    fold_results: Sequence[FoldResult],
    counts: Sequence[DrawCounts] | None,
    metric: str,
    level: float,
) -> MetricEstimate:
    values = compute_fold_metrics(fold_results, metric)
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    low, high = math.nan, math.nan
    if counts is not None:
        low, high = percentile_interval(fold_means(fold_results, counts, metric), level)
    return MetricEstimate(tuple(values.tolist()), float(values.mean()), spread, low, high)
