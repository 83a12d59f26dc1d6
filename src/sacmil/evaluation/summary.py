"""Metrics of each model: mean and standard deviation over folds, and a bootstrap interval.

Patients are resampled within their folds. They are independent of each other, slides are not. A
patient is therefore resampled with all slides. Folds that share patients (repeated
cross-validation, or one test set for every fold) share the resample, or the same evidence would
count several times. A resample in which some fold loses a class is repeated.

That can leave only rare resamples, all too similar to the data. Or a fold has so few patients of a
class that they are in nearly every resample. In both cases patients of all folds are resampled as
one group, and at least half of the folds must keep their classes. Folds are then weighted by the
share that was resampled: pairs for the AUC, rows for means over rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sacmil.errors import ConfigError
from sacmil.evaluation.fold_results import FoldResult, collect_fold_results, compute_fold_metrics
from sacmil.evaluation.metrics import WEIGHTED_METRICS, check_metric
from sacmil.results import Predictions

Floats = npt.NDArray[np.float64]
DrawCounts = npt.NDArray[np.uint16]
"""(draws, n): how often each unit of a fold is in the resample."""

DEFAULT_METRICS = ("accuracy", "auc", "f1")
"""The metrics of the paper's tables, in their order."""
NOT_RESAMPLED = frozenset({"calibration_error"})
"""Metrics without an interval: duplicated rows look like bad calibration, which biases it up."""
_ROW_MEAN_METRICS = frozenset({"accuracy", "brier", "log_loss"})
"""Means over rows, which do not need every class to be present."""
_ALL_FOLDS, _HALF_OF_FOLDS = 1.0, 0.5
"""Shares of the folds that must keep their classes."""
_MAX_ROUNDS = {_ALL_FOLDS: 4, _HALF_OF_FOLDS: 50}
"""By that share, the number of attempts per requested resample. If fewer than one in four keeps
all folds' classes, half of the folds must do."""
_TOO_FEW_PATIENTS = 2
"""Number of a class's patients in a fold that are in nearly every resample with the class."""
_CHUNK_WEIGHTS = 30_000
"""Weights per chunk: as many as fit into the processor's cache."""


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


def check_level_and_draws(*, level: float, draws: int, seed: int = 0) -> None:
    """Reject a level outside 0 to 1, fewer than one draw, and a negative seed."""
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a share between 0 and 1, such as 0.95")
    if draws < 1:
        raise ConfigError(f"draws is {draws}; expected a whole number of at least 1, such as 2000")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; expected a whole number from 0 up")


def percentile_interval(values: Floats, level: float) -> tuple[float, float]:
    """Return the central interval that holds the given share of the values.

    >>> percentile_interval(np.arange(101.0), 0.5)
    (25.0, 75.0)
    """
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# --- metrics of resamples ------------------------------------------------------------------------


def fold_means(
    fold_results: Sequence[FoldResult], counts: Sequence[DrawCounts], metric: str
) -> Floats:
    """Return the metric averaged over seeds and folds, in every resample: (draws,)."""
    if metric in NOT_RESAMPLED:
        return np.full(len(counts[0]), np.nan)
    folds = [_seed_means(*pair, metric) for pair in zip(fold_results, counts, strict=True)]
    weights = _weight_folds(fold_results, counts, metric)
    means: Floats = np.where(weights, weights * folds, 0.0).sum(0) / weights.sum(0)
    return means


def _seed_means(fold_result: FoldResult, counts: DrawCounts, metric: str) -> Floats:
    """Return a metric of one fold in every resample, averaged over seeds."""
    compute, labels = WEIGHTED_METRICS[metric], fold_result.labels
    step = 1 + _CHUNK_WEIGHTS // len(labels)
    means = []
    for begin in range(0, len(counts), step):
        weights = counts[begin : begin + step].astype(np.float64)
        each = [compute(labels, p, weights) for p in fold_result.probabilities]
        means.append(np.mean(each, axis=0))
    return np.concatenate(means)


def _weight_folds(
    fold_results: Sequence[FoldResult], counts: Sequence[DrawCounts], metric: str
) -> Floats:
    """Return the weight of each fold in each resample, 1 on average; NaN if none is valid."""
    pairs = np.stack(
        [_share_of_drawn_pairs(*pair) for pair in zip(fold_results, counts, strict=True)]
    )
    if pairs.all():
        return np.ones_like(pairs)
    if metric in _ROW_MEAN_METRICS:
        return np.stack([count.mean(1) for count in counts])
    return pairs if metric == "auc" else np.full_like(pairs, np.nan)


def _share_of_drawn_pairs(fold_result: FoldResult, counts: DrawCounts) -> Floats:
    """Return the product of the classes' resampled shares, 0 if a class is lost: (draws,)."""
    labels = fold_result.labels
    share: Floats = np.prod([counts[:, labels == c].mean(1) for c in np.unique(labels)], axis=0)
    return share


# --- resamples -----------------------------------------------------------------------------------


def resample_patients(
    fold_results: Sequence[FoldResult], *, draws: int, seed: int
) -> list[DrawCounts] | None:
    """Return how often each unit is in each resample, one array per fold.

    Returns None if too few resamples keep each class.

    Args:
        fold_results: of one model, one per fold.
        draws: number of resamples.
        seed: equal fold results and seeds give equal resamples.
    """
    groups, shares = _group_by_shared_patients(fold_results), [_ALL_FOLDS, _HALF_OF_FOLDS]
    if any(_min_patients_per_class([result]) <= _TOO_FEW_PATIENTS for result in fold_results):
        if _min_patients_per_class(fold_results) <= _TOO_FEW_PATIENTS:
            return None
        groups, shares = [list(range(len(fold_results)))], [_HALF_OF_FOLDS]
    counts: dict[int, DrawCounts] = {}
    for number, members in enumerate(groups):
        random = np.random.default_rng([seed, number])
        group = [fold_results[index] for index in members]
        resampled = _resample_group(group, draws, random, shares)
        if resampled is None:
            return None
        counts.update(zip(members, resampled, strict=True))
    return [counts[index] for index in range(len(fold_results))]


def _group_by_shared_patients(fold_results: Sequence[FoldResult]) -> list[list[int]]:
    """Return the indices of fold results in groups without a common patient."""
    groups: list[tuple[set[str], list[int]]] = []
    for index, result in enumerate(fold_results):
        patients, members = set(result.patients.tolist()), [index]
        others = [group for group in groups if group[0].isdisjoint(patients)]
        for shared in [group for group in groups if group not in others]:
            patients, members = patients | shared[0], members + shared[1]
        groups = [*others, (patients, members)]
    return sorted(sorted(members) for _, members in groups)


def _min_patients_per_class(fold_results: Sequence[FoldResult]) -> int:
    """Return the number of patients of the rarest class over the folds."""
    patients = np.concatenate([result.patients for result in fold_results])
    labels = np.concatenate([result.labels for result in fold_results])
    return min(len(np.unique(patients[labels == label])) for label in np.unique(labels))


def _resample_group(
    fold_results: Sequence[FoldResult],
    draws: int,
    random: np.random.Generator,
    shares: Sequence[float],
) -> list[DrawCounts] | None:
    patients = np.unique(np.concatenate([result.patients for result in fold_results]))
    indices = [np.searchsorted(patients, result.patients) for result in fold_results]
    classes = [
        _mark_patient_classes(result, index, len(patients))
        for result, index in zip(fold_results, indices, strict=True)
    ]
    for share in shares:
        min_folds = math.ceil(share * len(fold_results))
        counts = _draw_until_enough(classes, min_folds, draws, _MAX_ROUNDS[share], random)
        if counts is not None:
            return [counts[:, index] for index in indices]
    return None


def _mark_patient_classes(
    fold_result: FoldResult, indices: npt.NDArray[np.intp], patients: int
) -> npt.NDArray[np.float32]:
    """Return which patients have which classes of the fold: (patients, classes)."""
    present, index = np.unique(fold_result.labels, return_inverse=True)
    has = np.zeros((patients, len(present)), np.float32)
    has[indices, index] = 1
    return has


def _draw_until_enough(
    classes: Sequence[npt.NDArray[np.float32]],
    min_folds: int,
    draws: int,
    rounds: int,
    random: np.random.Generator,
) -> DrawCounts | None:
    """Return resamples in which at least min_folds keep their classes: (draws, patients)."""
    size = len(classes[0])
    kept: list[DrawCounts] = []
    for _ in range(rounds):
        drawn = [random.integers(size, size=size) for _ in range(draws)]
        counts = np.stack([np.bincount(each, minlength=size).astype(np.uint16) for each in drawn])
        present = (counts > 0).astype(np.float32)
        complete = np.sum([(present @ has > 0).all(1) for has in classes], axis=0)
        kept.append(counts[complete >= min_folds])
        if sum(map(len, kept)) >= draws:
            return np.concatenate(kept)[:draws]
    return None
