"""Comparisons of survival between groups of patients, and along a variable."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.metrics._survival_checks import Flags, Floats, check_column, check_follow_up
from sacmil.metrics.survival_curves import Z

MAX_STEPS = 200
"""Of Newton's method; it takes about six."""


class LogRank(NamedTuple):
    """Statistic of the log-rank test and its p-value; NaN where nothing can be compared."""

    chi2: float
    p: float


class HazardRatio(NamedTuple):
    """Ratio of hazards per unit of a variable, with its 95 % interval and Wald's p-value."""

    ratio: float
    low: float
    high: float
    p: float


def log_rank(
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    groups: npt.ArrayLike,
    strata: npt.ArrayLike | None = None,
) -> LogRank:
    """Test whether two or more groups have the same survival.

    Args:
        times: (n,).
        events: (n,).
        groups: any label (n,).
        strata: any label, such as the fold (n,); only patients of one stratum are compared.

    >>> log_rank([1, 2, 3, 4], [1, 1, 1, 1], ["a", "b", "a", "b"]).p > 0.05
    True
    """
    checked, flags = check_follow_up(times, events)
    labels, group = np.unique(_check_labels(groups, "groups", len(checked)), return_inverse=True)
    members = np.eye(len(labels))[group]
    excess, variance = np.zeros(len(labels)), np.zeros((len(labels), len(labels)))
    for rows in _iter_strata(strata, len(checked)):
        of_stratum = _compare_with_expected(checked[rows], flags[rows], members[rows])
        excess += of_stratum[0]
        variance += of_stratum[1]
    return _test_excess(excess[:-1], variance[:-1, :-1])


def hazard_ratio(
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    x: npt.ArrayLike,
    strata: npt.ArrayLike | None = None,
) -> HazardRatio:
    """Estimate Cox's hazard ratio of one variable, ties as by Efron.

    NaN if the estimate is not finite: each event has the largest x of the patients at risk, or each
    has the smallest. That includes a constant x and data without events.

    Args:
        times: (n,).
        events: (n,).
        x: a number of each patient, 0 and 1 for two groups (n,).
        strata: any label, such as the fold (n,); each stratum has a baseline hazard of its own.
    """
    checked, flags = check_follow_up(times, events)
    column = check_column(x, "x", len(checked))
    rows = list(_iter_strata(strata, len(checked)))
    sets = [_make_risk_sets(checked[r], flags[r], column[r]) for r in rows]
    is_infinite = all(s.is_largest.all() for s in sets) or all(s.is_smallest.all() for s in sets)
    scale = float(column.std()) if len(column) else 0.0
    slope, error = (math.nan, math.nan) if is_infinite else _fit(sets, scale)
    if math.isnan(slope):
        return HazardRatio(math.nan, math.nan, math.nan, math.nan)
    p = math.erfc(abs(slope / error) / math.sqrt(2))
    return HazardRatio(_exp(slope), _exp(slope - Z * error), _exp(slope + Z * error), p)


def _compare_with_expected(times: Floats, events: Flags, members: Floats) -> tuple[Floats, Floats]:
    """Return observed minus expected events of each group, and their covariance: (G,), (G, G)."""
    distinct, row = np.unique(times, return_inverse=True)
    by_time = np.zeros((2, len(distinct), members.shape[1]))  # all patients, and the events
    np.add.at(by_time[0], row, members)
    np.add.at(by_time[1], row[events], members[events])
    at_risk = by_time[0, ::-1].cumsum(axis=0)[::-1]
    happened = by_time[1].sum(axis=1)
    total = at_risk.sum(axis=1)
    shares = at_risk / total[:, None]
    spread = happened * (total - happened) / np.maximum(total - 1, 1)
    variance = np.diag(spread @ shares) - shares.T @ (spread[:, None] * shares)
    return by_time[1].sum(axis=0) - happened @ shares, variance


def _test_excess(excess: Floats, variance: Floats) -> LogRank:
    """Return the chi-squared test of an excess of events: a degree for each group but one."""
    from scipy.special import gammaincc  # scipy is slow to load

    rank = int(np.linalg.matrix_rank(variance, hermitian=True)) if len(excess) else 0
    if not rank:
        return LogRank(math.nan, math.nan)
    if rank == len(excess):
        chi2 = float(excess @ np.linalg.solve(variance, excess))
    else:  # a group is never at risk together with another one
        chi2 = float(excess @ np.linalg.pinv(variance, hermitian=True) @ excess)
    return LogRank(chi2, float(gammaincc(len(excess) / 2, max(chi2, 0) / 2)))


@dataclass(frozen=True)
class _RiskSets:
    """Patients of a stratum in order of time, and for each event who is at risk then."""

    x: Floats
    """Of each patient, from 0 on (n,)."""
    rows: npt.NDArray[np.int64]
    """Events (e,)."""
    first: npt.NDArray[np.int64]
    """First row at risk; all later ones are too (e,)."""
    tie: npt.NDArray[np.int64]
    """Which group of events at one time (e,)."""
    removed: Floats
    """Share of its tied events that is no longer at risk: 0, 1/m, … (m−1)/m (e,)."""
    is_largest: Flags
    """Whether the event has the largest x at risk (e,)."""
    is_smallest: Flags


def _make_risk_sets(times: Floats, events: Flags, x: Floats) -> _RiskSets:
    order = np.argsort(times, kind="stable")
    times, events, x = times[order], events[order], x[order] - x.min(initial=np.inf)
    rows = np.flatnonzero(events)
    _, begin, tie, size = np.unique(
        times[rows], return_index=True, return_inverse=True, return_counts=True
    )
    first = np.searchsorted(times, times[rows], side="left")
    largest = np.maximum.accumulate(x[::-1])[::-1]
    smallest = np.minimum.accumulate(x[::-1])[::-1]
    return _RiskSets(
        x,
        rows,
        first,
        tie,
        removed=(np.arange(len(rows)) - begin[tie]) / size[tie],
        is_largest=x[rows] == largest[first],
        is_smallest=x[rows] == smallest[first],
    )


def _fit(sets: list[_RiskSets], scale: float) -> tuple[float, float]:
    """Maximise the partial likelihood by Newton's method; return the maximum and its error.

    ``scale`` is the spread of x, which the search has as its unit.
    """
    sets = [replace(s, x=s.x / scale) for s in sets]
    beta = 0.0
    likelihood, slope, information = _differentiate(sets, beta)
    for _ in range(MAX_STEPS):
        if not information > 0:  # too flat for floating-point numbers
            return math.nan, math.nan
        step = slope / information
        after = _differentiate(sets, beta + step)
        while not after[0] >= likelihood - 1e-9 * abs(likelihood) and abs(step) > 1e-12:
            step /= 2  # too far
            after = _differentiate(sets, beta + step)
        beta += step
        likelihood, slope, information = after
        if abs(step) <= 1e-11 * max(1, abs(beta)):
            break
    return beta / scale, 1 / math.sqrt(information) / scale


def _differentiate(sets: list[_RiskSets], beta: float) -> tuple[float, float, float]:
    """Return Efron's log partial likelihood, its slope and its curvature, negated."""
    sums = [sum(each) for each in zip(*(_differentiate_set(s, beta) for s in sets), strict=True)]
    return float(sums[0]), float(sums[1]), float(sums[2])


def _differentiate_set(s: _RiskSets, beta: float) -> tuple[float, float, float]:
    if not len(s.rows):
        return 0.0, 0.0, 0.0
    with np.errstate(divide="ignore"):
        log_x = np.log(s.x)
    # in logarithms, as sums of later risk sets may be too small beside earlier ones
    powers = np.array([beta * s.x + power for power in (0, log_x, 2 * log_x)])
    logs = np.logaddexp.accumulate(powers[:, ::-1], axis=1)[:, ::-1][:, s.first]
    scale = logs[0]
    tied = np.zeros((3, s.tie[-1] + 1))
    for total, power in zip(tied, powers[:, s.rows] - scale, strict=True):
        np.add.at(total, s.tie, np.exp(power))
    left = np.exp(logs - scale) - s.removed * tied[:, s.tie]
    mean, square = left[1] / left[0], left[2] / left[0]
    likelihood = (beta * s.x[s.rows] - scale - np.log(left[0])).sum()
    return likelihood, (s.x[s.rows] - mean).sum(), (square - mean**2).sum()


def _iter_strata(strata: npt.ArrayLike | None, length: int) -> Iterator[Flags]:
    """Yield the rows of each stratum; without strata, all rows."""
    if strata is None:
        yield np.ones(length, dtype=np.bool_)
        return
    labels = _check_labels(strata, "strata", length)
    for label in np.unique(labels):
        yield labels == label


def _check_labels(labels: npt.ArrayLike, name: str, length: int) -> npt.NDArray[np.generic]:
    checked = np.asarray(labels)
    if checked.shape != (length,):
        raise ValueError(f"{name}: found shape {checked.shape}, expected ({length},), one per time")
    if checked.dtype.kind == "f" and np.isnan(checked).any():
        raise ValueError(f"{name}: found NaN, expected a label for each patient")
    return checked


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf
