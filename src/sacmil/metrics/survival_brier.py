"""Brier score of predicted survival, corrected for censoring (Graf et al. 1999)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sacmil.metrics._survival_checks import (
    Floats,
    check_follow_up,
    check_increasing_moments,
    check_moments,
    check_probabilities,
    check_weights,
)
from sacmil.metrics.survival_curves import censoring_curve, kaplan_meier


def brier(
    train_times: npt.ArrayLike,
    train_events: npt.ArrayLike,
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    survival: npt.ArrayLike,
    at: npt.ArrayLike,
) -> Floats:
    """Return the mean squared error of predicted survival at each time: (m,).

    A patient with an event by then is weighted by 1 / G(event), one beyond by 1 / G(time), where G
    is the share of training patients who are not yet censored.

    Args:
        train_times: whose censoring corrects the errors.
        train_events: as long as ``train_times``.
        times: of the test patients (n,).
        events: (n,).
        survival: predicted probability to survive each time (n, m), or (n,) for one time.
        at: times (m,), from the first test time to before the last.
    """
    once = np.ones((1, np.size(times)))
    scores = weighted_brier(train_times, train_events, times, events, survival, at, once)
    return scores.reshape(-1)


def integrated_brier(
    train_times: npt.ArrayLike,
    train_events: npt.ArrayLike,
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    survival: npt.ArrayLike,
    at: npt.ArrayLike,
) -> float:
    """Return the mean of the Brier score over time, by trapezoids; arguments as for ``brier``."""
    once = np.ones((1, np.size(times)))
    return float(
        weighted_integrated_brier(train_times, train_events, times, events, survival, at, once)[0]
    )


def reference_integrated_brier(
    train_times: npt.ArrayLike,
    train_events: npt.ArrayLike,
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    at: npt.ArrayLike,
) -> float:
    """Return the integrated score of a model that predicts the training Kaplan-Meier for all."""
    moments = check_increasing_moments(at, least=2)
    curve = kaplan_meier(train_times, train_events).evaluate(moments)
    survival = np.broadcast_to(curve, (np.size(times), len(moments)))
    return integrated_brier(train_times, train_events, times, events, survival, moments)


def weighted_brier(
    train_times: npt.ArrayLike,
    train_events: npt.ArrayLike,
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    survival: npt.ArrayLike,
    at: npt.ArrayLike,
    weights: npt.ArrayLike,
) -> Floats:
    """Return the Brier score at each time of each resample of the test patients: (B, m).

    Args:
        train_times: whose censoring corrects the errors; the same in every resample.
        train_events: as long as ``train_times``.
        times: of the test patients (n,).
        events: (n,).
        survival: predicted probability to survive each time (n, m), or (n,) for one time.
        at: times (m,), from the first test time to before the last.
        weights: how often each test patient is in each resample (B, n).
    """
    errors = _compute_errors(train_times, train_events, times, events, survival, at)
    counts = check_weights(weights, len(errors))
    totals = counts.sum(axis=1)
    mean: Floats = counts @ errors / np.where(totals > 0, totals, np.nan)[:, None]
    return mean


def weighted_integrated_brier(
    train_times: npt.ArrayLike,
    train_events: npt.ArrayLike,
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    survival: npt.ArrayLike,
    at: npt.ArrayLike,
    weights: npt.ArrayLike,
) -> Floats:
    """Return the integrated Brier score of each resample of the test patients: (B,).

    Args:
        train_times: whose censoring corrects the errors; the same in every resample.
        train_events: as long as ``train_times``.
        times: of the test patients (n,).
        events: (n,).
        survival: predicted probability to survive each time (n, m).
        at: two or more increasing times (m,), from the first test time to before the last.
        weights: how often each test patient is in each resample (B, n).
    """
    moments = check_increasing_moments(at, least=2)
    scores = weighted_brier(train_times, train_events, times, events, survival, moments, weights)
    widths = np.diff(moments)
    mean: Floats = (scores[:, 1:] + scores[:, :-1]) / 2 @ widths / widths.sum()
    return mean


def _compute_errors(
    train_times: npt.ArrayLike,
    train_events: npt.ArrayLike,
    times: npt.ArrayLike,
    events: npt.ArrayLike,
    survival: npt.ArrayLike,
    at: npt.ArrayLike,
) -> Floats:
    """Return the corrected squared error of each patient at each time: (n, m)."""
    checked, flags = check_follow_up(times, events)
    moments = check_moments(at)
    _check_range(moments, checked)
    curve = censoring_curve(train_times, train_events)
    at_moment = curve.evaluate(moments)
    table = np.reshape(survival, (-1, 1)) if np.ndim(survival) == 1 else survival
    predicted = check_probabilities(table, "survival", (len(checked), len(moments)))
    is_case = flags[:, None] & (checked[:, None] <= moments)
    is_control = checked[:, None] > moments
    at_event = np.zeros((len(checked), 1))
    cases = is_case.any(axis=1)
    at_event[cases, 0] = 1 / curve.evaluate(checked[cases])
    expected = np.where(is_control, 1.0, 0.0)
    importance = np.where(is_case, at_event, expected / at_moment)
    errors: Floats = np.square(predicted - expected) * importance
    return errors


def _check_range(moments: Floats, times: Floats) -> None:
    """Raise if a time is outside the follow-up of the test patients."""
    if len(times) and (moments.min() < times.min() or moments.max() >= times.max()):
        raise ValueError(
            f"at: found times from {moments.min()} to {moments.max()}, expected times from "
            f"{times.min()} to before {times.max()}, the first and the last test time"
        )
