"""How good each model is: mean and spread over folds, and an interval for the mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sacmil.evaluation.intervals import Counts, check_settings, fold_means, percentiles, resample
from sacmil.evaluation.metrics import check_metric
from sacmil.evaluation.trials import Trial, trials_of, values_of
from sacmil.results import Predictions

USUAL = ("accuracy", "auc", "f1")
"""The metrics of the paper's tables, in their order."""


@dataclass(frozen=True)
class Figure:
    """One metric of one model; what is undefined is NaN."""

    values: tuple[float, ...]
    """One per fold, each the mean over seeds."""
    mean: float
    """Over folds."""
    std: float
    """Sample standard deviation over folds, as in the paper; NaN for a single one."""
    low: float
    high: float
    """The interval of the mean, patients being drawn again."""


def summarise(
    predictions: Predictions,
    *,
    metrics: Sequence[str] = USUAL,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> dict[str, dict[str, Figure]]:
    """Every metric of every model over the test rows.

    Args:
        predictions: of one or more models; rows of other splits than test are left out.
        metrics: names in METRICS.
        level: of the intervals.
        draws: how many times patients are drawn again.
        seed: of those draws.
    """
    check_settings(level=level, draws=draws)
    names = [check_metric(name) for name in metrics]
    figures = {}
    for model, trials in trials_of(predictions).items():
        counts = resample(trials, draws=draws, seed=seed)
        figures[model] = {name: _figure(trials, counts, name, level) for name in names}
    return figures


def _figure(
    trials: Sequence[Trial], counts: Sequence[Counts] | None, metric: str, level: float
) -> Figure:
    values = values_of(trials, metric)
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    low, high = math.nan, math.nan
    if counts is not None:
        low, high = percentiles(fold_means(trials, counts, metric), level)
    return Figure(tuple(values.tolist()), float(values.mean()), spread, low, high)
