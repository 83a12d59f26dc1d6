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
from sacmil.evaluation.metrics import WEIGHTED
from sacmil.evaluation.trials import Trial

Counts = npt.NDArray[np.uint16]
"""(draws, n): how often each unit of a fold was drawn."""

NOT_RESAMPLED = frozenset({"calibration_error"})
"""Without an interval: rows drawn twice look like bad calibration, so every draw is too high."""
_OVER_ROWS = frozenset({"accuracy", "brier", "log_loss"})
"""Means over rows, which need no class to be there."""
_ALL, _HALF = 1.0, 0.5
"""Shares of the folds that must keep their classes."""
_ROUNDS = {_ALL: 4, _HALF: 50}
"""By that share, how many times the number of draws asked for are tried: where one in four does not
keep them all, half of the folds will do."""
_FEW = 2
"""Patients of a class in a fold that would be in nearly every draw that keeps the class."""
_AT_ONCE = 30_000
"""Weights computed with at a time: as many as stay in the processor's cache."""


def resample(trials: Sequence[Trial], *, draws: int, seed: int) -> list[Counts] | None:
    """How often each unit is drawn, one array per trial; None when too few draws keep each class.

    Args:
        trials: of one model, a fold each.
        draws: how many resamples.
        seed: the same trials and seed give the same draws.
    """
    counts: list[Counts] = [np.empty((0, 0), np.uint16)] * len(trials)
    few = any(_fewest(trial) <= _FEW for trial in trials)
    if few and _in_all(trials) <= _FEW:
        return None
    groups = [list(range(len(trials)))] if few else list(_sharing_patients(trials))
    for number, together in enumerate(groups):
        random = np.random.default_rng([seed, number])
        shares = (_HALF,) if few else (_ALL, _HALF)
        drawn = _drawn_together([trials[index] for index in together], draws, random, shares)
        if drawn is None:
            return None
        for index, count in zip(together, drawn, strict=True):
            counts[index] = count
    return counts


def fold_means(
    trials: Sequence[Trial], counts: Sequence[Counts], metric: str
) -> npt.NDArray[np.float64]:
    """The mean over folds, of the mean over seeds, in every resample: (draws,)."""
    if metric in NOT_RESAMPLED:
        return np.full(len(counts[0]), np.nan)
    folds = [_seed_means(*pair, metric) for pair in zip(trials, counts, strict=True)]
    weights = _weights(trials, counts, metric)
    means: npt.NDArray[np.float64] = np.where(weights, weights * folds, 0.0).sum(0) / weights.sum(0)
    return means


def percentiles(values: npt.NDArray[np.float64], level: float) -> tuple[float, float]:
    """The interval that leaves out as much of the values below as above.

    >>> percentiles(np.arange(101.0), 0.5)
    (25.0, 75.0)
    """
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def check_settings(*, level: float, draws: int) -> None:
    """Refuse a level that is no share, and draws that are none."""
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a share between 0 and 1, such as 0.95")
    if draws < 1:
        raise ConfigError(f"draws is {draws}; expected a whole number from 1 up, such as 2000")


def _seed_means(trial: Trial, counts: Counts, metric: str) -> npt.NDArray[np.float64]:
    """One metric of one fold in every resample, mean over seeds."""
    figure = WEIGHTED[metric]
    step = 1 + _AT_ONCE // len(trial.units)
    chunks = [
        counts[begin : begin + step].astype(np.float64) for begin in range(0, len(counts), step)
    ]
    return np.concatenate(
        [
            np.mean([figure(trial.labels, p, weights) for p in trial.probabilities], axis=0)
            for weights in chunks
        ]
    )


def _sharing_patients(trials: Sequence[Trial]) -> Iterator[list[int]]:
    """Indices of trials in groups that have no patient in common."""
    groups: list[tuple[set[str], list[int]]] = []
    for index, trial in enumerate(trials):
        patients, members = set(trial.patients.tolist()), [index]
        apart = []
        for group in groups:
            if group[0].isdisjoint(patients):
                apart.append(group)
            else:
                patients, members = patients | group[0], group[1] + members
        groups = [*apart, (patients, members)]
    return iter(sorted(sorted(members) for _, members in groups))


def _fewest(trial: Trial) -> int:
    """Patients of the class that has fewest."""
    return min(
        len(np.unique(trial.patients[trial.labels == label])) for label in np.unique(trial.labels)
    )


def _in_all(trials: Sequence[Trial]) -> int:
    """The same over all folds."""
    patients = np.concatenate([trial.patients for trial in trials])
    labels = np.concatenate([trial.labels for trial in trials])
    return min(len(np.unique(patients[labels == label])) for label in np.unique(labels))


def _drawn_together(
    trials: Sequence[Trial],
    draws: int,
    random: np.random.Generator,
    shares: Sequence[float],
) -> list[Counts] | None:
    patients = np.unique(np.concatenate([trial.patients for trial in trials]))
    places = [np.searchsorted(patients, trial.patients) for trial in trials]
    classes = [_classes(t, p, len(patients)) for t, p in zip(trials, places, strict=True)]
    for share in shares:
        fewest = math.ceil(share * len(trials))
        counts = _enough(classes, fewest, draws, _ROUNDS[share], random)
        if counts is not None:
            return [counts[:, place] for place in places]
    return None


def _enough(
    classes: Sequence[npt.NDArray[np.float32]],
    fewest: int,
    draws: int,
    rounds: int,
    random: np.random.Generator,
) -> Counts | None:
    """Draws in which at least that many folds keep their classes: (draws, patients)."""
    kept: list[Counts] = []
    for _ in range(rounds):
        counts = _counts(random, draws, len(classes[0]))
        there = (counts > 0).astype(np.float32)
        whole = np.sum([(there @ has > 0).all(1) for has in classes], axis=0)
        kept.append(counts[whole >= fewest])
        if sum(map(len, kept)) >= draws:
            return np.concatenate(kept)[:draws]
    return None


def _classes(trial: Trial, places: npt.NDArray[np.intp], patients: int) -> npt.NDArray[np.float32]:
    """Which patients have which of the trial's classes: (patients, classes)."""
    present, index = np.unique(trial.labels, return_inverse=True)
    has = np.zeros((patients, len(present)), np.float32)
    has[places, index] = 1
    return has


def _weights(
    trials: Sequence[Trial], counts: Sequence[Counts], metric: str
) -> npt.NDArray[np.float64]:
    """How much each fold counts in each draw, one on average; NaN where none is right."""
    pairs = np.stack([_pairs_drawn(*pair) for pair in zip(trials, counts, strict=True)])
    if pairs.all():
        return np.ones_like(pairs)
    if metric in _OVER_ROWS:
        return np.stack([count.mean(1) for count in counts])
    return pairs if metric == "auc" else np.full_like(pairs, np.nan)


def _pairs_drawn(trial: Trial, counts: Counts) -> npt.NDArray[np.float64]:
    """The product of the classes' shares that were drawn; zero where one was lost: (draws,)."""
    each = [counts[:, trial.labels == label].mean(1) for label in np.unique(trial.labels)]
    drawn: npt.NDArray[np.float64] = np.prod(each, axis=0)
    return drawn


def _counts(random: np.random.Generator, draws: int, size: int) -> Counts:
    return np.stack(
        [
            np.bincount(random.integers(size, size=size), minlength=size).astype(np.uint16)
            for _ in range(draws)
        ]
    )
