"""Metrics of survival as a task has them: of targets (n, 2), predictions (n, P) and resamples.

What corrects for censoring is learned from the training patients of each fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from sacmil.metrics import survival as formulas
from sacmil.metrics.metric import Floats, Formula, Metric
from sacmil.tasks._survival_times import format_number

FormatTime = Callable[[float], str]
_FIRST_CURVE_COLUMN = 2
_TITLES = {"auc_at": "AUC", "brier_at": "Brier score"}


def make_metrics(
    curve_times: tuple[float, ...], horizons: tuple[float, ...], format_time: FormatTime
) -> dict[str, Metric]:
    """Return all metrics by name.

    Args:
        curve_times: times of the columns of survival.
        horizons: those of them that have metrics of their own.
        format_time: returns a time with its unit.
    """
    censored = partial(Metric, skips_undefined=True, makes_blocks=True)
    by_pairs = partial(censored, formula=_return_nan, fold_size=_count_pairs)
    by_rows = partial(censored, formula=_return_nan, fold_size=_count_rows, lower_is_better=True)
    found = {
        "c": Metric(
            "c-index",
            _harrell,
            scale="ranks",
            skips_undefined=True,
            makes_blocks=True,
            fold_size=_count_pairs,
        ),
        "c_uno": by_pairs("Uno's c", scale="ranks", for_training=_bind(_uno)),
    }
    if not curve_times:
        return found
    times = np.array(curve_times)
    columns = [curve_times.index(time) for time in horizons]
    if horizons:
        compute_auc = partial(_mean_auc, np.array(horizons), columns)
        found["auc"] = by_pairs("AUC(t)", for_training=_bind(compute_auc))
    compute = partial(_integrated_brier, times)
    found["ibs"] = by_rows("IBS", is_additive=True, for_training=_bind(compute))
    compute = partial(_reference_brier, times)
    found["ibs_km"] = by_rows("IBS of Kaplan-Meier", for_training=_bind(compute))
    for time, column in zip(horizons, columns, strict=True):
        title, compute = format_time(time), partial(_auc, time, column)
        found[_name_metric("auc_at", time)] = by_pairs(
            f"{_TITLES['auc_at']}, {title}", for_training=_bind(compute)
        )
        compute = partial(_brier, time, column)
        found[_name_metric("brier_at", time)] = by_rows(
            f"{_TITLES['brier_at']}, {title}", for_training=_bind(compute)
        )
    return found


def make_breakdown(
    horizons: tuple[float, ...], format_time: FormatTime
) -> dict[str, Mapping[str, str]]:
    """Return the metrics of each horizon by title."""
    return {
        format_time(time): {title: _name_metric(key, time) for key, title in _TITLES.items()}
        for time in horizons
    }


def _bind(
    formula: Callable[[Floats, Floats, Floats, Floats], Floats],
) -> Callable[[Floats], Formula]:
    """Return what makes a metric's formula from the targets of a training set."""

    def bind(training: Floats) -> Formula:
        return partial(formula, training)

    return bind


def _name_metric(key: str, time: float) -> str:
    """Return such as "auc_at_12"."""
    return f"{key}_{format_number(time)}"


def _split(targets: Floats) -> tuple[Floats, Floats]:
    """Return times and events."""
    return targets[:, 0], targets[:, 1]


def _harrell(targets: Floats, values: Floats, weights: Floats) -> Floats:
    return formulas.weighted_harrell(*_split(targets), values[:, 0], weights)


def _count_pairs(targets: Floats, weights: Floats) -> Floats:
    """Return the number of pairs of patients that can be compared."""
    return formulas.weighted_pairs(*_split(targets), weights)


def _count_rows(targets: Floats, weights: Floats) -> Floats:
    rows: Floats = weights.sum(axis=1)
    return rows


def _return_nan(targets: Floats, values: Floats, weights: Floats) -> Floats:
    return np.full(len(weights), np.nan)


def _uno(training: Floats, targets: Floats, values: Floats, weights: Floats) -> Floats:
    tau = formulas.default_tau(training[:, 0])
    return formulas.weighted_uno(*_split(training), *_split(targets), values[:, 0], tau, weights)


def _mean_auc(
    horizons: Floats,
    columns: list[int],
    training: Floats,
    targets: Floats,
    values: Floats,
    weights: Floats,
) -> Floats:
    """Return the mean AUC over the horizons that test and training patients reach."""
    known = horizons < _find_limit(training, targets)
    if not known.any():
        return np.full(len(weights), np.nan)
    survival = values[:, _FIRST_CURVE_COLUMN:][:, columns][:, known]
    risks = rank_by_survival(survival, values[:, 0])
    args = (*_split(training), *_split(targets), risks, horizons[known], weights)
    return formulas.weighted_cumulative_auc(*args)[1]


def rank_by_survival(survival: Floats, risks: Floats) -> Floats:
    """Return the rank of each patient at each time, the lowest survival last: (n, k).

    Patients of equal survival are ranked by their risk: before the first event of the training set
    nobody's survival by Cox's model is below 1.

    Args:
        survival: of each patient at some times (n, k).
        risks: (n,).
    """
    keys = (np.stack([1 - at_time, risks], axis=1).round(8) for at_time in survival.T)
    ranks = [np.unique(key, axis=0, return_inverse=True)[1].reshape(-1) for key in keys]
    return np.stack(ranks, axis=1).astype(np.float64)


def _auc(
    time: float, column: int, training: Floats, targets: Floats, values: Floats, weights: Floats
) -> Floats:
    return _mean_auc(np.array([time]), [column], training, targets, values, weights)


def _brier(
    time: float, column: int, training: Floats, targets: Floats, values: Floats, weights: Floats
) -> Floats:
    """Return the Brier score at one time."""
    if not time < _find_limit(training, targets):
        return np.full(len(weights), np.nan)
    survival = values[:, _FIRST_CURVE_COLUMN + column, None]
    if time < targets[:, 0].min(initial=np.inf):  # everyone is still observed
        known = formulas.censoring_curve(*_split(training)).evaluate([time])
        means: Floats = weights @ (1 - survival[:, 0]) ** 2 / weights.sum(axis=1) / known
        return means
    return formulas.weighted_brier(*_split(training), *_split(targets), survival, [time], weights)[
        :, 0
    ]


def _integrated_brier(
    times: Floats, training: Floats, targets: Floats, values: Floats, weights: Floats
) -> Floats:
    def predict(at: Floats) -> Floats:
        return interpolate_survival(times, values[:, _FIRST_CURVE_COLUMN:], at)

    return _integrate(predict, times, training, targets, weights)


def _reference_brier(
    times: Floats, training: Floats, targets: Floats, values: Floats, weights: Floats
) -> Floats:
    def predict(at: Floats) -> Floats:
        curve = formulas.kaplan_meier(*_split(training)).evaluate(at)
        return np.broadcast_to(curve, (len(targets), len(at)))

    return _integrate(predict, times, training, targets, weights)


def _integrate(
    predict: Callable[[Floats], Floats],
    times: Floats,
    training: Floats,
    targets: Floats,
    weights: Floats,
) -> Floats:
    """Return the integrated Brier score of what is predicted at the moments that are reached."""
    at = _list_moments(times, training, targets)
    if len(at) < 2:
        return np.full(len(weights), np.nan)
    args = (*_split(training), *_split(targets), predict(at), at, weights)
    return formulas.weighted_integrated_brier(*args)


def interpolate_survival(times: Floats, survival: Floats, at: Floats) -> Floats:
    """Return survival at other times: hazards are constant between the times of the curve.

    Args:
        times: of the curve (m,).
        survival: of each patient (n, m).
        at: times up to the last of the curve (k,).
    """
    logs = np.log(np.maximum(survival, 1e-300))
    knots, padded = np.append(0.0, times), np.pad(logs, ((0, 0), (1, 0)))
    found: Floats = np.exp([np.interp(at, knots, row) for row in padded])
    return found.reshape(-1, len(at))


def _list_moments(times: Floats, training: Floats, targets: Floats) -> Floats:
    """Return times for a mean over time: those of the curve that the test set reaches."""
    first = targets[:, 0].min(initial=np.inf)
    limit = min(_find_limit(training, targets), times[-1])
    inside: Floats = times[(times >= first) & (times < limit)]
    return np.unique(np.append(first, inside)) if first < limit else inside


def _find_limit(training: Floats, targets: Floats) -> float:
    """Return the time before which test patients are left and censoring is known."""
    curve = formulas.censoring_curve(*_split(training))
    return float(min(targets[:, 0].max(initial=0), curve.times[-1]))
