"""Curves of one group of patients: survival, censoring, hazard, and what is read off them.

Every function takes times (n,) and events (n,): 1 if the event happened at that time, 0 if the
patient was censored then. A patient censored at a time is still at risk at that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.metrics._survival_checks import (
    Flags,
    Floats,
    check_column,
    check_follow_up,
    check_moments,
    check_probabilities,
    check_times,
    check_training,
)

Counts = npt.NDArray[np.int64]

Z = 1.959963984540054
"""97.5 % quantile of the normal distribution: half of a 95 % interval, in standard errors."""
ROUNDING = 1e-12
"""Distance from one half within which a share of survivors is one half."""


class MedianSurvival(NamedTuple):
    """Time at which half of the patients survive, with its 95 % interval; inf if not reached."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class KaplanMeier:
    """Kaplan and Meier 1958: the share of patients who survive each time; a row per distinct time.

    ``low`` and ``high`` are the 95 % interval of log(−log survival).
    """

    times: Floats
    survival: Floats
    low: Floats
    high: Floats
    at_risk: Counts
    """Patients whose time is this one or later."""
    events: Counts
    censored: Counts

    def evaluate(self, at: npt.ArrayLike) -> Floats:
        """Return the share that survives some times: NaN past the last one, unless it is 0."""
        return self._evaluate(self.survival, at)

    def interval(self, at: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Return the lower and the upper bound at some times."""
        return self._evaluate(self.low, at), self._evaluate(self.high, at)

    def median(self) -> MedianSurvival:
        """Return the first time at which survival, or its bound, is at most one half."""
        return MedianSurvival(
            *(self._find_half(curve) for curve in (self.survival, self.low, self.high))
        )

    def restricted_mean(self, tau: float) -> float:
        """Return the area under the curve up to a time: the mean time survived until then."""
        if not tau >= 0:
            raise ValueError(f"tau: found {tau}, expected a number of 0 or more")
        if not len(self.times) or (tau > self.times[-1] and self.survival[-1] > 0):
            return float("nan")
        before = self.times < tau
        end = min(tau, self.times[-1])  # nobody is left after the last time
        knots = np.concatenate([[0.0], self.times[before], [end]])
        return float(np.diff(knots) @ np.concatenate([[1.0], self.survival[before]]))

    def _evaluate(self, values: Floats, at: npt.ArrayLike) -> Floats:
        moments = check_moments(at)
        if not len(self.times):
            return np.full(len(moments), np.nan)
        is_past = (moments > self.times[-1]) & (self.survival[-1] > 0)
        return np.where(is_past, np.nan, evaluate_steps(self.times, values, 1.0, moments))

    def _find_half(self, values: Floats) -> float:
        if not len(self.times):
            return float("nan")
        reached = values <= 0.5 + ROUNDING
        return float(self.times[reached.argmax()]) if reached.any() else float("inf")


@dataclass(frozen=True, eq=False)
class CensoringCurve:
    """The share of training patients who are not yet censored; a row per distinct time."""

    times: Floats
    survival: Floats

    def evaluate(self, at: npt.ArrayLike) -> Floats:
        """Return the share at some times; ValueError where it is 0 or was not observed."""
        moments = check_column(np.atleast_1d(np.asarray(at, dtype=np.float64)), "at")
        last, is_used_up = self.times[-1], self.survival[-1] == 0
        undefined = moments >= last if is_used_up else moments > last
        if undefined.any():
            raise ValueError(
                f"censoring is unknown at time {moments[undefined].max()}: found training times "
                f"up to {last}, expected times {'before' if is_used_up else 'up to'} {last}; "
                f"the largest usable tau is {last}, as Uno's c counts events before it"
            )
        return evaluate_steps(self.times, self.survival, 1.0, moments)


class CalibrationGroups(NamedTuple):
    """Predicted and observed survival at one time, by groups of rising prediction: (groups,)."""

    predicted: Floats
    """Mean prediction."""
    observed: Floats
    """Kaplan-Meier, with its 95 % interval; NaN past the group's last time, unless it is 0."""
    low: Floats
    high: Floats
    counts: Counts
    """Patients."""


def kaplan_meier(times: npt.ArrayLike, events: npt.ArrayLike) -> KaplanMeier:
    """Estimate survival, with its 95 % interval.

    >>> kaplan_meier([1, 2, 2, 4], [1, 1, 0, 1]).survival.tolist()
    [0.75, 0.5, 0.0]
    """
    distinct, happened, censored, at_risk = _count_by_time(*check_follow_up(times, events))
    survival = _cumulate_survival(happened, at_risk)
    low, high = survival.copy(), survival.copy()
    inside = (survival > 0) & (survival < 1)
    log_survival = np.log(survival[inside])
    half_width = Z * np.sqrt(_cumulate_variance(happened, at_risk)[inside]) / -log_survival
    low[inside] = np.exp(log_survival * np.exp(half_width))
    high[inside] = np.exp(log_survival * np.exp(-half_width))
    return KaplanMeier(distinct, survival, low, high, at_risk, happened, censored)


def greenwood(times: npt.ArrayLike, events: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return the times of events and Greenwood's standard error of Kaplan-Meier there."""
    distinct, happened, _, at_risk = _count_by_time(*check_follow_up(times, events))
    variance = _cumulate_variance(happened, at_risk)
    error = _cumulate_survival(happened, at_risk) * np.sqrt(variance)
    return distinct[happened > 0], error[happened > 0]


def median_survival(times: npt.ArrayLike, events: npt.ArrayLike) -> MedianSurvival:
    """Return the median time to the event, with its 95 % interval; inf if not reached.

    >>> median_survival([1, 2, 3, 4], [1, 1, 1, 1]).median
    2.0
    """
    return kaplan_meier(times, events).median()


def restricted_mean(times: npt.ArrayLike, events: npt.ArrayLike, tau: float) -> float:
    """Return the mean time survived until tau; NaN past the last time, unless nobody is left.

    >>> restricted_mean([1, 2, 3, 4], [1, 1, 1, 1], 2)
    1.75
    """
    return kaplan_meier(times, events).restricted_mean(tau)


def count_at_risk(times: npt.ArrayLike, ticks: npt.ArrayLike) -> Counts:
    """Return how many patients have a time of at least each tick.

    >>> count_at_risk([1, 2, 2, 5], [0, 2, 3]).tolist()
    [4, 3, 1]
    """
    rising = np.sort(check_times(times))
    moments = check_column(np.atleast_1d(np.asarray(ticks, dtype=np.float64)), "ticks")
    return len(rising) - np.searchsorted(rising, moments, side="left").astype(np.int64)


def censoring_curve(train_times: npt.ArrayLike, train_events: npt.ArrayLike) -> CensoringCurve:
    """Estimate censoring by Kaplan-Meier; of patients with one time, events come first.

    >>> censoring_curve([1, 2, 3, 3], [1, 0, 1, 0]).survival.round(3).tolist()
    [1.0, 0.667, 0.0]
    """
    counts = _count_by_time(*check_training(train_times, train_events))
    distinct, happened, censored, at_risk = counts
    return CensoringCurve(distinct, _cumulate_survival(censored, at_risk - happened))


def baseline_hazard(
    times: npt.ArrayLike, events: npt.ArrayLike, log_hazards: npt.ArrayLike
) -> tuple[Floats, Floats]:
    """Return the distinct times and Breslow's cumulative hazard of a patient of log hazard 0.

    Survival of another patient is exp(−cumulative hazard · exp(log hazard)).

    >>> baseline_hazard([1, 2], [1, 1], [0, 0])[1].tolist()
    [0.5, 1.5]
    """
    checked, flags = check_follow_up(times, events)
    values = check_column(log_hazards, "log_hazards", len(checked))
    order = np.argsort(checked, kind="stable")
    distinct, first = np.unique(checked[order], return_index=True)
    # in logarithms, as sums of later risk sets may be too small beside earlier ones
    log_at_risk = np.logaddexp.accumulate(values[order][::-1])[::-1][first]
    happened = _count_by_time(checked, flags)[1]
    return distinct, np.cumsum(np.where(happened, happened * np.exp(-log_at_risk), 0))


def calibrate_at(
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    survival: npt.ArrayLike,
    at: float,
    groups: int = 5,
) -> CalibrationGroups:
    """Compare predicted with observed survival at one time, in quantile groups of the prediction.

    Args:
        times: (n,).
        events: (n,).
        survival: predicted probability to survive the time (n,).
        at: the time.
        groups: how many; with tied predictions some may be empty, with NaN and no patients.
    """
    if groups < 1:
        raise ValueError(f"groups: found {groups}, expected 1 or more")
    checked, flags = check_follow_up(times, events)
    column = check_column(survival, "survival", len(checked))
    predicted = check_probabilities(column[:, None], "survival", (len(checked), 1))[:, 0]
    if len(checked):
        edges = np.quantile(predicted, np.arange(1, groups) / groups)
        group = np.searchsorted(edges, predicted, side="right")
    else:
        group = np.zeros(0, dtype=np.int64)
    rows = [_calibrate_group(checked, flags, predicted, group == g, at) for g in range(groups)]
    columns = np.array(rows).T
    counts = np.bincount(group, minlength=groups).astype(np.int64)
    return CalibrationGroups(columns[0], columns[1], columns[2], columns[3], counts)


def curve_in_bins(
    survival: npt.ArrayLike, edges: npt.ArrayLike, last: float, at: npt.ArrayLike
) -> Floats:
    """Return survival at some times (n, m) from survival through each of K bins of time.

    Survival is 1 at time 0. Inside a bin the hazard is constant. It is NaN past the last time.

    Args:
        survival: probability to survive the end of each bin (n, K).
        edges: inner edges of the bins, increasing (K−1,).
        last: end of the last bin, the largest training time.
        at: times (m,).

    >>> curve_in_bins([[0.5, 0.125]], [10], 20, [0, 5, 10, 15, 21]).round(4).tolist()
    [[1.0, 0.7071, 0.5, 0.25, nan]]
    """
    inner, moments = check_column(edges, "edges"), check_moments(at)
    limits = np.concatenate([[0.0], inner, [float(last)]])
    if not (np.diff(limits[:-1]) > 0).all() or not limits[-1] >= limits[-2] or not last > 0:
        raise ValueError(f"edges: found {inner} up to {last}, expected increasing times above 0")
    if (moments < 0).any():
        raise ValueError(f"at: found {moments.min()}, expected times of 0 or more")
    rows = np.shape(survival)[:1] or (0,)
    ends = check_probabilities(survival, "survival", (rows[0], len(limits) - 1))
    starts = np.concatenate([np.ones((len(ends), 1)), ends[:, :-1]], axis=1)
    kept = np.divide(ends, starts, out=np.zeros_like(ends), where=starts > 0)
    index = np.searchsorted(inner, moments, side="right")
    width = np.diff(limits)[index]
    elapsed = np.divide(moments - limits[index], width, out=np.ones(len(moments)), where=width > 0)
    curve: Floats = starts[:, index] * kept[:, index] ** np.minimum(elapsed, 1)
    return np.where(moments > last, np.nan, curve)


def evaluate_steps(times: Floats, values: Floats, start: float, at: Floats) -> Floats:
    """Return the value of the last step at or before each time; the start before the first."""
    steps: Floats = np.concatenate([[start], values])
    return steps[np.searchsorted(times, at, side="right")]


def _calibrate_group(
    times: Floats, events: Flags, predicted: Floats, members: Flags, at: float
) -> tuple[float, float, float, float]:
    if not members.any():
        return (np.nan,) * 4
    curve = kaplan_meier(times[members], events[members])
    low, high = curve.interval(at)
    return float(predicted[members].mean()), float(curve.evaluate(at)[0]), low[0], high[0]


def _count_by_time(times: Floats, events: Flags) -> tuple[Floats, Counts, Counts, Counts]:
    """Return the distinct times, and how many have the event, are censored and are at risk."""
    distinct, row = np.unique(times, return_inverse=True)
    happened = np.bincount(row[events], minlength=len(distinct)).astype(np.int64)
    censored = np.bincount(row[~events], minlength=len(distinct)).astype(np.int64)
    at_risk = (happened + censored)[::-1].cumsum()[::-1]
    return distinct, happened, censored, at_risk


def _cumulate_survival(happened: Counts, at_risk: Counts) -> Floats:
    """Return Π(1 − events / at risk); nobody at risk changes nothing."""
    lost = np.divide(happened, at_risk, out=np.zeros(len(happened)), where=at_risk > 0)
    return np.cumprod(1 - lost)


def _cumulate_variance(happened: Counts, at_risk: Counts) -> Floats:
    """Return Σ events / (at risk · survivors), Greenwood's variance of log survival."""
    below = (at_risk * (at_risk - happened)).astype(np.float64)
    return np.cumsum(np.divide(happened, below, out=np.zeros(len(happened)), where=below > 0))
