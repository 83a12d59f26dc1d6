"""The table of operating points: what thresholds from validation sets achieve on the test set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from sacmil.evaluation.fold_results import FoldResult, collect_fold_results, select_test_rows
from sacmil.evaluation.summary import MetricEstimate, estimate_metric, resample_patients
from sacmil.evaluation.table_format import DEFAULT_STYLE, UNDEFINED, Cell, ResultTable, TableStyle
from sacmil.evaluation.tables import describe_interval, has_intervals
from sacmil.metrics.classification import weighted_calibration_error, weighted_log_loss
from sacmil.metrics.metric import Metric
from sacmil.metrics.operating_point import DECISION_METRICS, DecisionMetric
from sacmil.results import Predictions
from sacmil.tasks import Task
from sacmil.tasks.calibration import mark_positives

Floats = npt.NDArray[np.float64]
JobKey = tuple[str, int, int]
"""Model, seed and fold."""

_LOSSES = {"log_loss": "Log loss", "calibration_error": "Calibration error"}
_NUMBERS = ("mean", "std", "low", "high")


@dataclass(frozen=True, eq=False)
class AppliedCalibration:
    """What was done to calibrated predictions."""

    raw: Predictions
    """The same rows before."""
    thresholds: Mapping[JobKey, Mapping[str, float]]
    """Of each job by the name of its class or label; empty for more than two classes."""
    rules: tuple[str, ...] = ()
    """How they were chosen."""


@dataclass(frozen=True)
class _OperatingPoint:
    """A class or label of one model, over all folds."""

    model: str
    name: str
    thresholds: tuple[float, ...]
    """Of all jobs."""
    estimates: Mapping[str, MetricEstimate]

    def format_threshold(self, style: TableStyle) -> str:
        if not self.thresholds:
            return UNDEFINED
        low, high = (style.format_number(end(self.thresholds)) for end in (min, max))
        mean = style.format_number(float(np.mean(self.thresholds)))
        return mean if low == high else f"{mean} ({low} to {high})"


def operating_points_table(
    predictions: Predictions,
    applied: AppliedCalibration,
    *,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    style: TableStyle = DEFAULT_STYLE,
) -> ResultTable:
    """Return a table with a row per model and class or label that has a threshold.

    Args:
        predictions: calibrated; rows of other splits than test are left out.
        applied: what was done to them.
        level: confidence level of the intervals.
        draws: number of resamples of patients.
        seed: of the resampling.
        style: number format.
    """
    raw = collect_fold_results(applied.raw)
    points: list[_OperatingPoint] = []
    for model, folds in collect_fold_results(predictions).items():
        counts = resample_patients(folds, draws=draws, seed=seed)
        estimate = partial(estimate_metric, counts=counts, level=level)
        thresholds = _list_thresholds(predictions, applied, model)
        points += _measure_model(model, folds, raw[model], thresholds, estimate)
    caption = _make_caption(applied, points, style, describe_interval(level, draws))
    return _make_table(points, caption, style)


def _list_thresholds(
    predictions: Predictions, applied: AppliedCalibration, model: str
) -> list[list[Mapping[str, float]]]:
    """Return the thresholds of a model's jobs by fold and seed, in their order."""
    test = select_test_rows(predictions)
    jobs = sorted(
        (fold, seed)
        for name, seed, fold in {
            *zip(test.model.tolist(), test.seed.tolist(), test.fold.tolist(), strict=True)
        }
        if name == model
    )
    by_fold: dict[int, list[Mapping[str, float]]] = {}
    for fold, seed in jobs:
        by_fold.setdefault(fold, []).append(applied.thresholds[model, seed, fold])
    return list(by_fold.values())


def _measure_model(
    model: str,
    folds: Sequence[FoldResult],
    raw: Sequence[FoldResult],
    thresholds: Sequence[Sequence[Mapping[str, float]]],
    estimate: Callable[..., MetricEstimate],
) -> list[_OperatingPoint]:
    task, points = folds[0].task, []
    for name in thresholds[0][0] or ("",):
        column = task.value_names.index(name) if name else 0
        estimates = {}
        lines = [np.array([job[name] for job in jobs]) for jobs in thresholds] if name else []
        decided = [_decide(*pair, column) for pair in zip(folds, lines, strict=False)]
        for key, (title, formula) in DECISION_METRICS.items() if decided else ():
            estimates[key] = estimate(
                decided, metric=_make_decision_metric(task, column, title, formula)
            )
        for key, metric in _make_loss_metrics(task, column).items():
            estimates[f"{key}_before"] = estimate(raw, metric=metric)
            estimates[key] = estimate(folds, metric=metric)
        every = tuple(float(value) for line in lines for value in line)
        points.append(_OperatingPoint(model, name, every, estimates))
    return points


def _decide(result: FoldResult, thresholds: Floats, column: int) -> FoldResult:
    """Return a fold result whose only value is the decision: 1 from the threshold of a seed on."""
    above = result.values[:, :, [column]] >= thresholds[:, None, None]
    return replace(result, values=above.astype(np.float64))


def _make_decision_metric(task: Task, column: int, title: str, formula: DecisionMetric) -> Metric:
    def compute(targets: Floats, values: Floats, weights: Floats) -> Floats:
        return formula(mark_positives(task, targets, column), values[:, 0], weights)

    return Metric(title, compute, fold_weight="pairs", skips_undefined=True)


def _make_loss_metrics(task: Task, column: int) -> dict[str, Metric]:
    """Return log loss and calibration error: of classes together, of a label by itself."""
    formulas = {"log_loss": weighted_log_loss, "calibration_error": weighted_calibration_error}

    def make(key: str) -> Metric:
        def compute(targets: Floats, values: Floats, weights: Floats) -> Floats:
            truth, p = targets[:, 0], values
            if task.calibrated_as == "labels":
                truth = mark_positives(task, targets, column)
                p = np.stack([1 - values[:, column], values[:, column]], axis=1)
            known = ~np.isnan(truth)
            return formulas[key](truth[known].astype(np.int64), p[known], weights[:, known])

        has_interval = key == "log_loss"
        return Metric(
            _LOSSES[key],
            compute,
            lower_is_better=True,
            fold_weight="rows",
            has_interval=has_interval,
            skips_undefined=has_interval,
        )

    return {key: make(key) for key in formulas}


# --- the table -----------------------------------------------------------------------------------


def _make_table(points: Sequence[_OperatingPoint], caption: str, style: TableStyle) -> ResultTable:
    rows, records = [], []
    for point in points:
        found = point.estimates
        decisions = [
            style.format_estimate(found[key]) if key in found else UNDEFINED
            for key in DECISION_METRICS
        ]
        losses = [
            f"{style.format_number(found[f'{key}_before'].mean)} → "
            f"{style.format_number(found[key].mean)}"
            for key in _LOSSES
        ]
        cells = (point.model, point.name or "all", point.format_threshold(style))
        rows.append(tuple(map(Cell, (*cells, *decisions, *losses))))
        threshold = float(np.mean(point.thresholds)) if point.thresholds else math.nan
        keys = {"model": point.model, "of": point.name or "all", "threshold": threshold}
        for key, one in found.items():
            numbers = {name: float(getattr(one, name)) for name in _NUMBERS}
            records.append({**keys, "metric": key, **numbers})
    titles = [title for title, _ in DECISION_METRICS.values()]
    header = ("model", "of", "threshold", *titles, *_LOSSES.values())
    return ResultTable(caption, header, tuple(rows), tuple(records))


def _make_caption(
    applied: AppliedCalibration, points: Sequence[_OperatingPoint], style: TableStyle, drawn: str
) -> str:
    has_thresholds = any(applied.thresholds.values())
    chosen = f" ({' or '.join(applied.rules)})" if has_thresholds else ""
    interval = f" {drawn}" if has_intervals({p.model: p.estimates for p in points}, style) else ""
    return (
        f"Temperatures and thresholds are of each fold's validation set{chosen}, metrics of the "
        f"test set: mean over folds{interval}. Log loss and calibration error: before → after. "
        "PPV and NPV hold for the share of positives in this test set. Other tables and plots use "
        "calibrated probabilities, and count the most probable class."
    )
