"""Area under the ROC curve at a time: patients with an event by then against those beyond it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sacmil.metrics._survival_checks import (
    Flags,
    Floats,
    check_column,
    check_follow_up,
    check_increasing_moments,
    check_table,
    check_weights,
)
from sacmil.metrics.survival_concordance import TIED_RISK
from sacmil.metrics.survival_curves import censoring_curve

BLOCK_SIZE = 2**20
"""Weights that are processed at once: few enough for the cache, and for any memory."""


def cumulative_auc(
    train_times: npt.ArrayLike,
    train_events: npt.ArrayLike,
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    risks: npt.ArrayLike,
    at: npt.ArrayLike,
) -> tuple[Floats, float]:
    """Return the cumulative/dynamic AUC at each time and its mean: (m,) and a number.

    Args:
        train_times: whose censoring corrects the cases.
        train_events: as long as ``train_times``.
        times: of the test patients (n,).
        events: (n,).
        risks: one for all times (n,), or one for each (n, m).
        at: increasing times (m,). NaN where there is no case or no control.
    """
    once = np.ones((1, np.size(times)))
    values, means = weighted_cumulative_auc(
        train_times, train_events, times, events, risks, at, once
    )
    return values[0], float(means[0])


def weighted_cumulative_auc(
    train_times: npt.ArrayLike,
    train_events: npt.ArrayLike,
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    risks: npt.ArrayLike,
    at: npt.ArrayLike,
    weights: npt.ArrayLike,
) -> tuple[Floats, Floats]:
    """Return the AUC at each time and its mean for each resample: (B, m) and (B,).

    A case, with an event at or before a time, is weighted by 1 / G. G is the share of training
    patients who are not yet censored at that event. The mean weights a time by the share of test
    patients of the resample that is lost since the time before, estimated by Kaplan-Meier.

    Args:
        train_times: whose censoring corrects the cases; the same in every resample.
        train_events: as long as ``train_times``.
        times: of the test patients (n,).
        events: (n,).
        risks: one for all times (n,), or one for each (n, m).
        at: increasing times (m,).
        weights: how often each test patient is in each resample (B, n).
    """
    checked, flags = check_follow_up(times, events)
    moments = check_increasing_moments(at)
    columns = _to_columns(risks, len(checked), len(moments))
    counts = check_weights(weights, len(checked))
    curve = censoring_curve(train_times, train_events)
    importance = np.zeros(len(checked))
    is_case = flags & (checked <= moments[-1])
    importance[is_case] = 1 / curve.evaluate(checked[is_case])
    step = max(1, BLOCK_SIZE // max(1, len(checked)))
    blocks = [counts[i : i + step] for i in range(0, max(1, len(counts)), step)]
    values = np.concatenate(
        [_compute_block(checked, importance, columns, moments, block) for block in blocks]
    )
    survival = np.concatenate([_weighted_survival(checked, flags, moments, b) for b in blocks])
    return values, _average(values, survival)


def _to_columns(risks: npt.ArrayLike, rows: int, moments: int) -> Floats:
    """Return a column of risks for each time: (n, m)."""
    if np.ndim(risks) == 2:
        return check_table(risks, "risks", (rows, moments))
    return np.broadcast_to(check_column(risks, "risks", rows)[:, None], (rows, moments))


def _compute_block(
    times: Floats, importance: Floats, columns: Floats, moments: Floats, weights: Floats
) -> Floats:
    pairs = zip(moments, columns.T, strict=True)
    return np.stack(
        [_compute_at(times, importance, risks, moment, weights) for moment, risks in pairs], axis=1
    )


def _compute_at(
    times: Floats, importance: Floats, risks: Floats, moment: float, weights: Floats
) -> Floats:
    """Return the AUC at one time: (B,)."""
    cases = np.flatnonzero((importance > 0) & (times <= moment))
    controls = np.flatnonzero(times > moment)
    controls = controls[np.argsort(risks[controls], kind="stable")]
    passed = np.zeros((len(weights), len(controls) + 1))  # weight of the lowest controls
    passed[:, 1:] = weights[:, controls].cumsum(axis=1)
    below = np.searchsorted(risks[controls], risks[cases] - TIED_RISK, side="left")
    up_to = np.searchsorted(risks[controls], risks[cases] + TIED_RISK, side="right")
    of_case = weights[:, cases] * importance[cases]
    ordered = np.einsum("bi,bi->b", of_case, passed[:, below] + passed[:, up_to]) / 2
    return _ratio(ordered, of_case.sum(axis=1) * passed[:, -1])


def _weighted_survival(times: Floats, events: Flags, moments: Floats, weights: Floats) -> Floats:
    """Return Kaplan-Meier of each resample at some times, as ``KaplanMeier.evaluate``: (B, m)."""
    if not len(times):
        return np.full((len(weights), len(moments)), np.nan)
    order = np.argsort(times, kind="stable")
    distinct, first = np.unique(times[order], return_index=True)
    rising = weights[:, order]
    happened = np.add.reduceat(rising * events[order], first, axis=1)
    at_risk = np.zeros((len(weights), len(distinct) + 1))
    at_risk[:, :-1] = rising[:, ::-1].cumsum(axis=1)[:, ::-1][:, first]
    lost = np.divide(
        happened, at_risk[:, :-1], out=np.zeros_like(happened), where=at_risk[:, :-1] > 0
    )
    steps = np.concatenate([np.ones((len(weights), 1)), np.cumprod(1 - lost, axis=1)], axis=1)
    survival: Floats = steps[:, np.searchsorted(distinct, moments, side="right")]
    is_past = at_risk[:, np.searchsorted(distinct, moments, side="left")] == 0
    return np.where(is_past & (survival > 0), np.nan, survival)


def _average(values: Floats, survival: Floats) -> Floats:
    """Return the mean over times, weighted by the loss of survival since the time before: (B,)."""
    losses = -np.diff(survival, axis=1, prepend=1)
    terms = np.where(losses == 0, 0, values * losses)  # also where the AUC is undefined
    return _ratio(terms.sum(axis=1), 1 - survival[:, -1])


def _ratio(above: Floats, below: Floats) -> Floats:
    return above / np.where(below > 0, below, np.nan)
