"""How sure a mean over folds is: patients are drawn again, within their folds.

Patients are what is independent, so patients are drawn, with all their slides. Folds that share
patients (repeated cross-validation, or one test set for every fold) are drawn together, a patient
as often in the one as in the other: drawn apart, the same evidence would count several times.
A draw in which some fold loses one of its classes is drawn again. Where that leaves rare draws, all
too much like the data, or a fold has so few patients of a class that they are in nearly every draw,
patients of all folds are drawn together, at least half of the folds must keep their classes, and
folds count by how much of them was drawn: pairs for the AUC, rows for means over rows.
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
"""(draws, n): how often each unit of a fold was drawn."""

NOT_RESAMPLED = frozenset({"calibration_error"})
"""Without an interval: rows drawn twice look like bad calibration, so every draw is too high."""
_ROW_MEAN_METRICS = frozenset({"accuracy", "brier", "log_loss"})
"""Means over rows, which need no class to be there."""
_ALL_FOLDS, _HALF_OF_FOLDS = 1.0, 0.5
"""Shares of the folds that must keep their classes."""
_MAX_ROUNDS = {_ALL_FOLDS: 4, _HALF_OF_FOLDS: 50}
"""By that share, how many times the number of draws asked for are tried: where one in four does not
keep them all, half of the folds will do."""
_TOO_FEW_PATIENTS = 2
"""Patients of a class in a fold that would be in nearly every draw that keeps the class."""
_CHUNK_WEIGHTS = 30_000
"""Weights computed with at a time: as many as stay in the processor's cache."""


def resample_patients(
    fold_results: Sequence[FoldResult], *, draws: int, seed: int
) -> list[DrawCounts] | None:
    """How often each unit is drawn, one array per trial; None when too few draws keep each class.

    Args:
        fold_results: of one model, a fold each.
        draws: how many resamples.
        seed: the same trials and seed give the same draws.
    """
    counts: list[DrawCounts] = [np.empty((0, 0), np.uint16)] * len(fold_results)
    few = any(_min_patients_per_class(trial) <= _TOO_FEW_PATIENTS for trial in fold_results)
    if few and _min_patients_over_folds(fold_results) <= _TOO_FEW_PATIENTS:
        return None
    groups = (
        [list(range(len(fold_results)))] if few else list(_group_by_shared_patients(fold_results))
    )
    for number, together in enumerate(groups):
        random = np.random.default_rng([seed, number])
        shares = (_HALF_OF_FOLDS,) if few else (_ALL_FOLDS, _HALF_OF_FOLDS)
        drawn = _resample_group([fold_results[index] for index in together], draws, random, shares)
        if drawn is None:
            return None
        for index, count in zip(together, drawn, strict=True):
            counts[index] = count
    return counts


def fold_means(
    fold_results: Sequence[FoldResult], counts: Sequence[DrawCounts], metric: str
) -> npt.NDArray[np.float64]:
    """The mean over folds, of the mean over seeds, in every resample: (draws,)."""
    if metric in NOT_RESAMPLED:
        return np.full(len(counts[0]), np.nan)
    folds = [_seed_means(*pair, metric) for pair in zip(fold_results, counts, strict=True)]
    weights = _weight_folds(fold_results, counts, metric)
    means: npt.NDArray[np.float64] = np.where(weights, weights * folds, 0.0).sum(0) / weights.sum(0)
    return means


def percentile_interval(values: npt.NDArray[np.float64], level: float) -> tuple[float, float]:
    """The interval that leaves out as much of the values below as above.

    >>> percentile_interval(np.arange(101.0), 0.5)
    (25.0, 75.0)
    """
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def check_level_and_draws(*, level: float, draws: int) -> None:
    """Refuse a level that is no share, and draws that are none."""
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a share between 0 and 1, such as 0.95")
    if draws < 1:
        raise ConfigError(f"draws is {draws}; expected a whole number from 1 up, such as 2000")


def _seed_means(
    fold_result: FoldResult, counts: DrawCounts, metric: str
) -> npt.NDArray[np.float64]:
    """One metric of one fold in every resample, mean over seeds."""
    figure = WEIGHTED_METRICS[metric]
    step = 1 + _CHUNK_WEIGHTS // len(fold_result.units)
    chunks = [
        counts[begin : begin + step].astype(np.float64) for begin in range(0, len(counts), step)
    ]
    return np.concatenate(
        [
            np.mean(
                [figure(fold_result.labels, p, weights) for p in fold_result.probabilities], axis=0
            )
            for weights in chunks
        ]
    )


def _group_by_shared_patients(fold_results: Sequence[FoldResult]) -> Iterator[list[int]]:
    """Indices of trials in groups that have no patient in common."""
    groups: list[tuple[set[str], list[int]]] = []
    for index, trial in enumerate(fold_results):
        patients, members = set(trial.patients.tolist()), [index]
        apart = []
        for group in groups:
            if group[0].isdisjoint(patients):
                apart.append(group)
            else:
                patients, members = patients | group[0], group[1] + members
        groups = [*apart, (patients, members)]
    return iter(sorted(sorted(members) for _, members in groups))


def _min_patients_per_class(fold_result: FoldResult) -> int:
    """Patients of the class that has fewest."""
    return min(
        len(np.unique(fold_result.patients[fold_result.labels == label]))
        for label in np.unique(fold_result.labels)
    )


def _min_patients_over_folds(fold_results: Sequence[FoldResult]) -> int:
    """The same over all folds."""
    patients = np.concatenate([trial.patients for trial in fold_results])
    labels = np.concatenate([trial.labels for trial in fold_results])
    return min(len(np.unique(patients[labels == label])) for label in np.unique(labels))


def _resample_group(
    fold_results: Sequence[FoldResult],
    draws: int,
    random: np.random.Generator,
    shares: Sequence[float],
) -> list[DrawCounts] | None:
    patients = np.unique(np.concatenate([trial.patients for trial in fold_results]))
    places = [np.searchsorted(patients, trial.patients) for trial in fold_results]
    classes = [
        _mark_patient_classes(t, p, len(patients))
        for t, p in zip(fold_results, places, strict=True)
    ]
    for share in shares:
        fewest = math.ceil(share * len(fold_results))
        counts = _draw_until_enough(classes, fewest, draws, _MAX_ROUNDS[share], random)
        if counts is not None:
            return [counts[:, place] for place in places]
    return None


def _draw_until_enough(
    classes: Sequence[npt.NDArray[np.float32]],
    min_folds: int,
    draws: int,
    rounds: int,
    random: np.random.Generator,
) -> DrawCounts | None:
    """Draws in which at least that many folds keep their classes: (draws, patients)."""
    kept: list[DrawCounts] = []
    for _ in range(rounds):
        counts = _draw_counts(random, draws, len(classes[0]))
        there = (counts > 0).astype(np.float32)
        whole = np.sum([(there @ has > 0).all(1) for has in classes], axis=0)
        kept.append(counts[whole >= min_folds])
        if sum(map(len, kept)) >= draws:
            return np.concatenate(kept)[:draws]
    return None


def _mark_patient_classes(
    fold_result: FoldResult, places: npt.NDArray[np.intp], patients: int
) -> npt.NDArray[np.float32]:
    """Which patients have which of the trial's classes: (patients, classes)."""
    present, index = np.unique(fold_result.labels, return_inverse=True)
    has = np.zeros((patients, len(present)), np.float32)
    has[places, index] = 1
    return has


def _weight_folds(
    fold_results: Sequence[FoldResult], counts: Sequence[DrawCounts], metric: str
) -> npt.NDArray[np.float64]:
    """How much each fold counts in each draw, one on average; NaN where none is right."""
    pairs = np.stack(
        [_share_of_drawn_pairs(*pair) for pair in zip(fold_results, counts, strict=True)]
    )
    if pairs.all():
        return np.ones_like(pairs)
    if metric in _ROW_MEAN_METRICS:
        return np.stack([count.mean(1) for count in counts])
    return pairs if metric == "auc" else np.full_like(pairs, np.nan)


def _share_of_drawn_pairs(fold_result: FoldResult, counts: DrawCounts) -> npt.NDArray[np.float64]:
    """The product of the classes' shares that were drawn; zero where one was lost: (draws,)."""
    each = [
        counts[:, fold_result.labels == label].mean(1) for label in np.unique(fold_result.labels)
    ]
    drawn: npt.NDArray[np.float64] = np.prod(each, axis=0)
    return drawn


def _draw_counts(random: np.random.Generator, draws: int, size: int) -> DrawCounts:
    return np.stack(
        [
            np.bincount(random.integers(size, size=size), minlength=size).astype(np.uint16)
            for _ in range(draws)
        ]
    )
