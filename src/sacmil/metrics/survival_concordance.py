"""Concordance of risks with times: of patients who can be compared, the share in the right order.

Two patients are compared if the first has the event, and the second has a later time or is censored
at that time. They are in the right order if the first has the higher risk; risks within
``TIED_RISK`` count one half. NaN means that no two patients can be compared.

Risks of different models are not on one scale: ``within_fold_c`` compares patients of one fold.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.metrics._survival_checks import (
    Flags,
    Floats,
    check_column,
    check_follow_up,
    check_training_times,
    check_weights,
)
from sacmil.metrics.survival_curves import censoring_curve

TIED_RISK = 1e-8
"""Difference up to which two risks are tied."""
WEIGHT_BLOCK = 2**22
"""Weights that are processed at once."""
PAIR_BLOCK = 2**20
"""Pairs that are compared at once. With both blocks, memory stays below 300 MB."""
EXACT_IN_FLOAT32 = 2**23
"""Up to here every multiple of one half is a float32."""


class WithinFoldC(NamedTuple):
    """Harrell's c of several folds; only patients of one fold are compared."""

    pooled: float
    """Pairs in the right order of all folds / pairs of all folds."""
    mean: float
    """Mean of the folds that have pairs."""


def harrell_c(times: npt.ArrayLike, events: npt.ArrayLike, risks: npt.ArrayLike) -> float:
    """Harrell's c: the share of pairs in which the higher risk has the earlier event.

    >>> harrell_c([1, 2, 3], [1, 1, 0], [0.9, 0.5, 0.7])
    0.6666666666666666
    """
    return float(weighted_harrell(times, events, risks, np.ones((1, np.size(times))))[0])


def uno_c(
    train_times: npt.ArrayLike,
    train_events: npt.ArrayLike,
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    risks: npt.ArrayLike,
    tau: float,
) -> float:
    """Uno's c: Harrell's pairs, corrected for censoring, of events before ``tau``.

    A pair is weighted by 1 / G², where G is the share of training patients who are not yet censored
    at the time of the event. ``default_tau`` is a usual choice.
    """
    once = np.ones((1, np.size(times)))
    return float(weighted_uno(train_times, train_events, times, events, risks, tau, once)[0])


def default_tau(train_times: npt.ArrayLike) -> float:
    """Return the time that 80 % of the training patients do not exceed.

    >>> default_tau([10, 20, 30, 40, 50, 60])
    50.0
    """
    return float(np.percentile(check_training_times(train_times), 80))


def within_fold_c(
    times: npt.ArrayLike, events: npt.ArrayLike, risks: npt.ArrayLike, folds: npt.ArrayLike
) -> WithinFoldC:
    """Return Harrell's c of pairs within folds, pooled and as the mean of folds.

    Args:
        times: (n,).
        events: (n,).
        risks: of each patient, by the model that was tested on this patient's fold (n,).
        folds: any label of the fold (n,).
    """
    checked, flags = check_follow_up(times, events)
    values = check_column(risks, "risks", len(checked))
    labels = np.asarray(folds)
    if labels.shape != checked.shape:
        raise ValueError(f"folds: found shape {labels.shape}, expected {checked.shape}")
    members = [labels == label for label in np.unique(labels)]
    once = [np.ones((1, int(m.sum()))) for m in members]
    terms = [
        weighted_harrell_terms(checked[m], flags[m], values[m], ones)
        for m, ones in zip(members, once, strict=True)
    ]
    numerators = np.array([term[0][0] for term in terms])
    denominators = np.array([term[1][0] for term in terms])
    by_fold = _ratio(numerators, denominators)
    has_pairs = denominators > 0
    mean = float(by_fold[has_pairs].mean()) if has_pairs.any() else float("nan")
    return WithinFoldC(float(_ratio(numerators.sum(), denominators.sum())), mean)


# --- many resamples at once ----------------------------------------------------------------------


def weighted_harrell(
    times: npt.ArrayLike, events: npt.ArrayLike, risks: npt.ArrayLike, weights: npt.ArrayLike
) -> Floats:
    """Return Harrell's c of each resample: (B,)."""
    return _ratio(*weighted_harrell_terms(times, events, risks, weights))


def weighted_uno(
    train_times: npt.ArrayLike,
    train_events: npt.ArrayLike,
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    risks: npt.ArrayLike,
    tau: float,
    weights: npt.ArrayLike,
) -> Floats:
    """Return Uno's c of each resample of the test patients: (B,)."""
    return _ratio(
        *weighted_uno_terms(train_times, train_events, times, events, risks, tau, weights)
    )


def weighted_harrell_terms(
    times: npt.ArrayLike, events: npt.ArrayLike, risks: npt.ArrayLike, weights: npt.ArrayLike
) -> tuple[Floats, Floats]:
    """Return the pairs in the right order and all pairs of each resample: (B,) and (B,).

    Both are exact if weights are whole numbers. Σ numerators / Σ denominators pools folds.

    Args:
        times: (n,).
        events: (n,).
        risks: (n,).
        weights: how often each patient is in each resample (B, n).
    """
    checked, flags = check_follow_up(times, events)
    values = check_column(risks, "risks", len(checked))
    counts = check_weights(weights, len(checked))
    return _sum_pairs(checked, flags, flags.astype(np.float64), values, counts)


def weighted_pairs(times: npt.ArrayLike, events: npt.ArrayLike, weights: npt.ArrayLike) -> Floats:
    """Return the number of pairs of each resample that can be compared: (B,), for weights (B, n).

    >>> weighted_pairs([1, 2, 3], [1, 1, 0], [[1, 1, 1], [2, 0, 1]])
    array([3., 2.])
    """
    checked, flags = check_follow_up(times, events)
    counts = check_weights(weights, len(checked))
    order, first = _order_pairs(checked, flags)
    rising = counts[:, order]
    of_first = rising * flags[order]
    pairs: Floats = np.einsum("bi,bi->b", of_first, _sum_from_row(rising)[:, first])
    return pairs


def weighted_uno_terms(
    train_times: npt.ArrayLike,
    train_events: npt.ArrayLike,
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    risks: npt.ArrayLike,
    tau: float,
    weights: npt.ArrayLike,
) -> tuple[Floats, Floats]:
    """Return the weighted pairs in the right order and all weighted pairs: (B,) and (B,).

    Args:
        train_times: whose censoring corrects the pairs; the same in every resample.
        train_events: as long as ``train_times``.
        times: of the test patients (n,).
        events: (n,).
        risks: (n,).
        tau: only events before it count; ValueError if censoring is unknown there.
        weights: how often each test patient is in each resample (B, n).
    """
    checked, flags = check_follow_up(times, events)
    values = check_column(risks, "risks", len(checked))
    if np.isnan(tau):
        raise ValueError("tau: found NaN, expected a time")
    counts = check_weights(weights, len(checked))
    curve = censoring_curve(train_times, train_events)
    is_first = flags & (checked < tau)
    importance = np.zeros(len(checked))
    importance[is_first] = curve.evaluate(checked[is_first]) ** -2.0
    return _sum_pairs(checked, flags, importance, values, counts)


def _sum_pairs(
    times: Floats, events: Flags, importance: Floats, risks: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    """Sum over the pairs of each resample, those in the right order and all: (B,) and (B,).

    A pair adds the importance (n,) of its first patient, times the weights of both.
    """
    order, first = _order_pairs(times, events)
    step = max(1, WEIGHT_BLOCK // max(1, len(times)))
    sums = [
        _sum_pairs_of_block(first, importance[order], risks[order], block[:, order])
        for block in (weights[i : i + step] for i in range(0, max(1, len(weights)), step))
    ]
    numerators, denominators = (np.concatenate(each) for each in zip(*sums, strict=True))
    return numerators, denominators


def _order_pairs(
    times: Floats, events: Flags
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows by time, and for each of them the first row that it is compared with."""
    distinct_time = np.unique(times, return_inverse=True)[1]
    key = 2 * distinct_time + ~events  # of two patients with one time, the event is first
    order = np.argsort(key, kind="stable")
    return order, np.searchsorted(key[order], key[order], side="right")


def _sum_from_row(weights: Floats) -> Floats:
    """Return the weight from each row on: (B, n) to (B, n + 1)."""
    later = np.zeros((len(weights), weights.shape[1] + 1))
    later[:, :-1] = weights[:, ::-1].cumsum(axis=1)[:, ::-1]
    return later


def _sum_pairs_of_block(
    first: npt.NDArray[np.int64], importance: Floats, risks: Floats, weights: Floats
) -> tuple[Floats, Floats]:
    """Sum the pairs of each row i, in order of time, with all rows from ``first[i]`` on."""
    rows = np.flatnonzero(importance)
    of_first = weights[:, rows] * importance[rows]
    denominators = np.einsum("bi,bi->b", of_first, _sum_from_row(weights)[:, first[rows]])
    numerators = np.zeros(len(weights))
    of_second = np.ascontiguousarray(weights.T, dtype=_choose_precision(weights))
    step = max(1, PAIR_BLOCK // max(1, len(risks)))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        begin = first[block[0]]
        shares = _compare_risks(risks[block], risks[begin:], first[block] - begin)
        # everything here is finite, but some builds of BLAS raise the flag of invalid values
        with np.errstate(invalid="ignore"):
            ordered = shares.astype(of_second.dtype) @ of_second[begin:]
        numerators += np.einsum("bi,ib->b", of_first[:, start : start + step], ordered)
    return numerators, denominators


def _compare_risks(
    firsts: Floats, seconds: Floats, begins: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Return 1 for pairs in the right order, ½ for ties, 0 otherwise and before ``begins``."""
    excess = firsts[:, None] - seconds
    shares = (excess > TIED_RISK).astype(np.float32)
    shares += excess >= -TIED_RISK
    shares *= 0.5
    for row, begin in enumerate(begins):
        shares[row, :begin] = 0
    return shares


def _choose_precision(weights: Floats) -> type[np.float32 | np.float64]:
    """Return float32 if sums of halves of these weights are exact in it, which is twice as fast."""
    is_exact = not (weights % 1).any() and weights.sum(axis=1).max(initial=0) <= EXACT_IN_FLOAT32
    return np.float32 if is_exact else np.float64


def _ratio(above: npt.ArrayLike, below: npt.ArrayLike) -> Floats:
    ratio: Floats = np.asarray(above) / np.where(np.asarray(below) > 0, below, np.nan)
    return ratio
