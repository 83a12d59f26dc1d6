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
from sacmil.evaluation.fold_results import FoldResult, average_folds, collect_fold_results
from sacmil.metrics.metric import Metric
from sacmil.results import Predictions
from sacmil.tasks import from_card

Floats = npt.NDArray[np.float64]
DrawCounts = npt.NDArray[np.uint16]
"""(draws, n): how often each unit of a fold is in the resample."""

_MIN_DEFINED_SHARE = 0.5
"""Least share of resamples in which a metric must be defined, to have an interval."""
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
    title: str = ""
    """Of the metric."""
    lower_is_better: bool = False
    is_share: bool = True
    """Whether it can be printed in percent."""


def summarize(
    predictions: Predictions,
    *,
    metrics: str | Sequence[str] | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> dict[str, dict[str, MetricEstimate]]:
    """Estimate every metric of every model over the test rows.

    Args:
        predictions: of one or more models; rows of other splits than test are left out.
        metrics: names of metrics of the task, or "all"; None means those of its tables.
        level: confidence level of the intervals.
        draws: number of resamples of patients.
        seed: of the resampling.
    """
    check_level_and_draws(level=level, draws=draws)
    names = from_card(predictions.task).list_metrics(metrics)
    estimates = {}
    for model, fold_results in collect_fold_results(predictions).items():
        counts = resample_patients(fold_results, draws=draws, seed=seed)
        estimates[model] = {
            name: estimate_metric(fold_results, counts, name, level) for name in names
        }
    return estimates


def estimate_metric(
    fold_results: Sequence[FoldResult],
    counts: Sequence[DrawCounts] | None,
    metric: str | Metric,
    level: float,
) -> MetricEstimate:
    """Estimate one metric of one model.

    Args:
        fold_results: of the model, one per fold.
        counts: from resample_patients; None gives no interval.
        metric: or its name among those of the task.
        level: confidence level of the interval.
    """
    found = _find_metric(fold_results, metric)
    values = np.array([result.compute_metric(found) for result in fold_results])
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    mean = average_folds(fold_results, found, values)
    low, high = math.nan, math.nan
    if counts is not None:
        means = drop_undefined(found, fold_means(fold_results, counts, found))
        low, high = percentile_interval(center_draws(found, means, mean), level)
        high = min(high, 1.0) if found.is_centered else high
    return MetricEstimate(
        tuple(values.tolist()),
        mean,
        spread,
        low,
        high,
        found.title,
        found.lower_is_better,
        found.is_share,
    )


def _find_metric(fold_results: Sequence[FoldResult], metric: str | Metric) -> Metric:
    return fold_results[0].task.get_metric(metric) if isinstance(metric, str) else metric


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


def drop_undefined(metric: Metric, values: Floats) -> Floats:
    """Return the defined values, if the metric allows some to be undefined and most are not."""
    defined = np.isfinite(values)
    if not metric.skips_undefined or defined.mean() < _MIN_DEFINED_SHARE:
        return values
    return values[defined]


def center_draws(metric: Metric, drawn: Floats, value: float) -> Floats:
    """Return the values of resamples, moved to that of the data if the metric asks for it."""
    return drawn + (value - drawn.mean()) if metric.is_centered else drawn


# --- metrics of resamples ------------------------------------------------------------------------


def fold_means(
    fold_results: Sequence[FoldResult], counts: Sequence[DrawCounts], metric: str | Metric
) -> Floats:
    """Return the metric averaged over seeds and folds, in every resample: (draws,)."""
    found = _find_metric(fold_results, metric)
    if not found.has_interval:
        return np.full(len(counts[0]), np.nan)
    folds = [_seed_means(*pair, found) for pair in zip(fold_results, counts, strict=True)]
    weights = _weight_folds(fold_results, counts, found)
    if found.fold_size is not None:  # a fold without a value in the data has none in the mean
        is_defined = [not math.isnan(result.compute_metric(found)) for result in fold_results]
        weights = weights * np.array(is_defined)[:, None]
    with np.errstate(invalid="ignore"):  # 0 / 0 where no fold has any weight
        means: Floats = np.where(weights, weights * folds, 0.0).sum(0) / weights.sum(0)
    return means


def _seed_means(fold_result: FoldResult, counts: DrawCounts, metric: Metric) -> Floats:
    """Return a metric of one fold in every resample, averaged over seeds."""
    targets, metric = fold_result.targets, fold_result.bind(metric)
    step = len(counts) if metric.makes_blocks else 1 + _CHUNK_WEIGHTS // len(targets)
    means = []
    for begin in range(0, len(counts), step):
        weights = counts[begin : begin + step].astype(np.float64)
        each = [metric.formula(targets, values, weights) for values in fold_result.values]
        means.append(np.mean(each, axis=0))
    return np.concatenate(means)


def _weight_folds(
    fold_results: Sequence[FoldResult], counts: Sequence[DrawCounts], metric: Metric
) -> Floats:
    """Return the weight of each fold in each resample; NaN if none is valid."""
    if metric.fold_size is not None:
        drawn = zip(fold_results, counts, strict=True)
        return np.stack([result.measure_size(metric, weights) for result, weights in drawn])
    pairs = np.stack(
        [_share_of_drawn_pairs(*pair) for pair in zip(fold_results, counts, strict=True)]
    )
    if pairs.all():
        return np.ones_like(pairs)
    if metric.fold_weight == "rows":
        return np.stack([count.mean(1) for count in counts])
    return pairs if metric.fold_weight == "pairs" else np.full_like(pairs, np.nan)


def _share_of_drawn_pairs(fold_result: FoldResult, counts: DrawCounts) -> Floats:
    """Return the product of the classes' resampled shares, 0 if a class is lost: (draws,)."""
    groups = fold_result.groups
    share: Floats = np.prod([counts[:, groups == g].mean(1) for g in np.unique(groups)], axis=0)
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
    groups = np.concatenate([result.groups for result in fold_results])
    return min(len(np.unique(patients[groups == group])) for group in np.unique(groups))


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
    present, index = np.unique(fold_result.groups, return_inverse=True)
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
