"""Bootstrap intervals of a mean over folds: patients are resampled within their folds.

Patients are independent of each other, slides are not. A patient is therefore resampled with all
slides. Folds that share patients (repeated cross-validation, or one test set for every fold) share
the resample, or the same evidence would count several times. A resample in which some fold loses a
class is repeated.

That can leave only rare resamples, all too similar to the data. Or a fold has so few patients of a
class that they are in nearly every resample. In both cases patients of all folds are resampled as
one group, and at least half of the folds must keep their classes. Folds are then weighted by the
share that was resampled: pairs for the AUC, rows for means over rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sacmil.errors import ConfigError
from sacmil.evaluation.fold_results import FoldResult
from sacmil.evaluation.metrics import WEIGHTED_METRICS

DrawCounts = npt.NDArray[np.uint16]
"""(draws, n): how often each unit of a fold is in the resample."""

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
    counts: list[DrawCounts] = [np.empty((0, 0), np.uint16)] * len(fold_results)
    few = any(_min_patients_per_class(result) <= _TOO_FEW_PATIENTS for result in fold_results)
    if few and _min_patients_over_folds(fold_results) <= _TOO_FEW_PATIENTS:
        return None
    groups = (
        [list(range(len(fold_results)))] if few else list(_group_by_shared_patients(fold_results))
    )
    for number, members in enumerate(groups):
        random = np.random.default_rng([seed, number])
        shares = (_HALF_OF_FOLDS,) if few else (_ALL_FOLDS, _HALF_OF_FOLDS)
        resampled = _resample_group(
            [fold_results[index] for index in members], draws, random, shares
        )
        if resampled is None:
            return None
        for index, count in zip(members, resampled, strict=True):
            counts[index] = count
    return counts


def fold_means(
    fold_results: Sequence[FoldResult], counts: Sequence[DrawCounts], metric: str
) -> npt.NDArray[np.float64]:
    """Return the metric averaged over seeds and folds, in every resample: (draws,)."""
    if metric in NOT_RESAMPLED:
        return np.full(len(counts[0]), np.nan)
    folds = [_seed_means(*pair, metric) for pair in zip(fold_results, counts, strict=True)]
    weights = _weight_folds(fold_results, counts, metric)
    means: npt.NDArray[np.float64] = np.where(weights, weights * folds, 0.0).sum(0) / weights.sum(0)
    return means


def percentile_interval(values: npt.NDArray[np.float64], level: float) -> tuple[float, float]:
    """Return the central interval that holds the given share of the values.

    >>> percentile_interval(np.arange(101.0), 0.5)
    (25.0, 75.0)
    """
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def check_level_and_draws(*, level: float, draws: int, seed: int = 0) -> None:
    """Reject a level outside 0 to 1, fewer than one draw, and a negative seed."""
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a share between 0 and 1, such as 0.95")
    if draws < 1:
        raise ConfigError(f"draws is {draws}; expected a whole number of at least 1, such as 2000")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; expected a whole number from 0 up")


def _seed_means(
    fold_result: FoldResult, counts: DrawCounts, metric: str
) -> npt.NDArray[np.float64]:
    """Return a metric of one fold in every resample, averaged over seeds."""
    metric_function = WEIGHTED_METRICS[metric]
    step = 1 + _CHUNK_WEIGHTS // len(fold_result.units)
    chunks = [
        counts[begin : begin + step].astype(np.float64) for begin in range(0, len(counts), step)
    ]
    return np.concatenate(
        [
            np.mean(
                [
                    metric_function(fold_result.labels, p, weights)
                    for p in fold_result.probabilities
                ],
                axis=0,
            )
            for weights in chunks
        ]
    )


def _group_by_shared_patients(fold_results: Sequence[FoldResult]) -> Iterator[list[int]]:
    """Return the indices of fold results in groups without a common patient."""
    groups: list[tuple[set[str], list[int]]] = []
    for index, result in enumerate(fold_results):
        patients, members = set(result.patients.tolist()), [index]
        others = []
        for group in groups:
            if group[0].isdisjoint(patients):
                others.append(group)
            else:
                patients, members = patients | group[0], group[1] + members
        groups = [*others, (patients, members)]
    return iter(sorted(sorted(members) for _, members in groups))


def _min_patients_per_class(fold_result: FoldResult) -> int:
    """Return the number of patients of the rarest class."""
    return min(
        len(np.unique(fold_result.patients[fold_result.labels == label]))
        for label in np.unique(fold_result.labels)
    )


def _min_patients_over_folds(fold_results: Sequence[FoldResult]) -> int:
    """Return the number of patients of the rarest class over all folds."""
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


def _draw_until_enough(
    classes: Sequence[npt.NDArray[np.float32]],
    min_folds: int,
    draws: int,
    rounds: int,
    random: np.random.Generator,
) -> DrawCounts | None:
    """Return resamples in which at least min_folds keep their classes: (draws, patients)."""
    kept: list[DrawCounts] = []
    for _ in range(rounds):
        counts = _draw_counts(random, draws, len(classes[0]))
        present = (counts > 0).astype(np.float32)
        complete = np.sum([(present @ has > 0).all(1) for has in classes], axis=0)
        kept.append(counts[complete >= min_folds])
        if sum(map(len, kept)) >= draws:
            return np.concatenate(kept)[:draws]
    return None


def _mark_patient_classes(
    fold_result: FoldResult, indices: npt.NDArray[np.intp], patients: int
) -> npt.NDArray[np.float32]:
    """Return which patients have which classes of the fold: (patients, classes)."""
    present, index = np.unique(fold_result.labels, return_inverse=True)
    has = np.zeros((patients, len(present)), np.float32)
    has[indices, index] = 1
    return has


def _weight_folds(
    fold_results: Sequence[FoldResult], counts: Sequence[DrawCounts], metric: str
) -> npt.NDArray[np.float64]:
    """Return the weight of each fold in each resample, 1 on average; NaN if none is valid."""
    pairs = np.stack(
        [_share_of_drawn_pairs(*pair) for pair in zip(fold_results, counts, strict=True)]
    )
    if pairs.all():
        return np.ones_like(pairs)
    if metric in _ROW_MEAN_METRICS:
        return np.stack([count.mean(1) for count in counts])
    return pairs if metric == "auc" else np.full_like(pairs, np.nan)


def _share_of_drawn_pairs(fold_result: FoldResult, counts: DrawCounts) -> npt.NDArray[np.float64]:
    """Return the product of the classes' resampled shares, 0 if a class is lost: (draws,)."""
    each = [
        counts[:, fold_result.labels == label].mean(1) for label in np.unique(fold_result.labels)
    ]
    share: npt.NDArray[np.float64] = np.prod(each, axis=0)
    return share


def _draw_counts(random: np.random.Generator, draws: int, size: int) -> DrawCounts:
    return np.stack(
        [
            np.bincount(random.integers(size, size=size), minlength=size).astype(np.uint16)
            for _ in range(draws)
        ]
    )
