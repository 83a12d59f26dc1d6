"""Plots of survival: risk groups, AUC over time and calibration; each function returns a Figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sacmil.evaluation.fold_results import FoldResult, collect_fold_results, share_folds
from sacmil.evaluation.plots import (
    COLORS,
    INK,
    MAX_MODELS,
    PALE,
    describe_omitted_models,
    draw_diagonal,
    label_axes,
    line_style,
    make_figure,
    rank_models,
    shorten_name,
)
from sacmil.evaluation.survival import (
    PatientRisks,
    RiskGroup,
    RiskGroups,
    describe_cut,
    format_hazard_ratio,
    risk_groups,
    to_survival,
)
from sacmil.evaluation.table_format import format_p_value
from sacmil.metrics.survival import (
    CalibrationGroups,
    calibrate_at,
    censoring_curve,
    count_at_risk,
    cumulative_auc,
)
from sacmil.results import Predictions
from sacmil.tasks import from_card
from sacmil.tasks._survival_metrics import rank_by_survival
from sacmil.tasks.survival import CURVE, RISK, Survival

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Floats = npt.NDArray[np.float64]
_GROUP_TITLES = ("low risk", "high risk")
_MAX_TICKS = 7
"""More would leave no room for the numbers at risk."""
_MANY_MARKS = 250
"""Censored patients of a curve whose marks are small, as they would hide it."""
_STEPS = {
    "days": (30, 90, 180, 365, 730, 1825),
    "weeks": (4, 13, 26, 52, 104, 260),
    "months": (1, 3, 6, 12, 24, 60),
}
"""Between ticks; other units have decimal ones."""
_QUANTILES = 5
"""Groups of a calibration plot."""
_CHARS_PER_INCH = 14
"""Of a note."""
_LEAST_AUC = 0.2
"""Lower ends of bands are cut off."""
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 10, "labelcolor": INK}
_MAX_BANDS = 2
"""Deviations over folds are wide: more would hide one another."""


# --- Kaplan-Meier --------------------------------------------------------------------------------


def draw_kaplan_meier(predictions: Predictions) -> Figure:
    """Draw the survival of patients of low and high risk, a panel per model.

    Bands are pointwise intervals, small bars are censored patients. Below are those at risk.
    """
    task, found = to_survival(from_card(predictions.task)), risk_groups(predictions)
    ranked = rank_models(predictions)
    shown = {name: found[name] for name, _, _ in ranked[:MAX_MODELS]}
    columns = min(2, len(shown))
    lines = math.ceil(len(shown) / columns)
    figure = make_figure(6.0 if columns == 1 else 5.0 * columns, 4.6 * lines + 0.9)
    panels = figure.subplots(2 * lines, columns, squeeze=False, height_ratios=[6, 1] * lines)
    for axes in panels[-2:, columns - (lines * columns - len(shown)) :].flat:
        axes.remove()
    last = max(float(groups.patients.times.max(initial=0)) for groups in shown.values()) or 1.0
    for number, (name, groups) in enumerate(shown.items()):
        line, column = divmod(number, columns)
        above, below = panels[2 * line : 2 * line + 2, column]
        ticks = _set_time_limits(above, task, -0.02 * last, last)
        below.set_xlim(above.get_xlim())
        _draw_groups(above, groups)
        label_axes(above, _name_time(task), "survival" if column == 0 else "", "")
        _write_title(above, shorten_name(name), _describe_effect(groups))
        _draw_at_risk(below, groups, ticks)
    handles = _make_handles()
    names = [str(handle.get_label()) for handle in handles]
    figure.legend(handles, names, loc="outside upper left", ncols=3, **_LEGEND)
    cut = describe_cut(shown.values())
    _write_note(figure, cut, "Bands: pointwise 95 % intervals", ranked=ranked)
    return figure


def _write_title(axes: Axes, title: str, note: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, color=INK, pad=20)
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate(note, (0, 1), (0, 6), fontsize=10, color=INK, **place)


def _draw_groups(axes: Axes, groups: RiskGroups) -> None:
    axes.set_ylim(0, 1.03)
    axes.grid(color="#f0f0f0")
    for index, group in enumerate((groups.low, groups.high)):
        if group.num_patients:
            _draw_steps(axes, group, index)


def _draw_steps(axes: Axes, group: RiskGroup, index: int) -> None:
    curve, color = group.curve, COLORS[index]
    x = np.append(0, curve.times)
    y, low, high = (np.append(1, v) for v in (curve.survival, curve.low, curve.high))
    axes.fill_between(x, low, high, step="post", color=color, alpha=0.15, linewidth=0, zorder=2)
    axes.plot(x, y, drawstyle="steps-post", linewidth=1.8, zorder=4, **line_style(index))
    is_censored = curve.censored > 0
    marks = (curve.times[is_censored], curve.survival[is_censored])
    size, width = (6, 0.9) if is_censored.sum() < _MANY_MARKS else (4, 0.3)
    axes.plot(*marks, "|", color=color, markersize=size, markeredgewidth=width, zorder=5)


def _draw_at_risk(axes: Axes, groups: RiskGroups, ticks: Sequence[float]) -> None:
    """Write the numbers of patients at risk at each tick, a line per group."""
    for index, group in enumerate((groups.low, groups.high)):
        for tick, count in zip(ticks, count_at_risk(group.times, ticks).tolist(), strict=True):
            axes.text(tick, index, f"{count:,}", ha="center", va="center", fontsize=9, color=INK)
    axes.set_ylim(1.6, -0.6)
    axes.set_xticks([])
    axes.set_yticks([0, 1], _GROUP_TITLES, fontsize=9)
    for index, label in enumerate(axes.get_yticklabels()):
        label.set_color(COLORS[index])
    widest = len(f"{max(groups.low.num_patients, groups.high.num_patients):,}")
    axes.tick_params(length=0, pad=3 * widest + 2)  # half of a number is left of the first tick
    axes.spines[:].set_visible(False)
    axes.set_title("patients at risk", loc="left", fontsize=9, color=INK, pad=2)


def _make_handles() -> list[Line2D]:
    from matplotlib.lines import Line2D

    groups = [
        Line2D([], [], linewidth=1.8, label=title, **line_style(index))
        for index, title in enumerate(_GROUP_TITLES)
    ]
    censored = Line2D([], [], color=INK, marker="|", linestyle="", label="censored")
    return [*groups, censored]


def _describe_effect(groups: RiskGroups) -> str:
    """Return hazard ratio and p, or why there are none."""
    for group, title in zip((groups.low, groups.high), _GROUP_TITLES, strict=True):
        if not group.num_patients:
            return f"no patient of {title}"
    if not groups.low.num_events + groups.high.num_events:
        return "no events"
    p = format_p_value(groups.log_rank.p)
    p = f"p < {p[1:]}" if p.startswith("<") else f"p = {p}"
    return f"hazard ratio {format_hazard_ratio(groups.hazard_ratio)}, log-rank {p}"


# --- AUC over time -------------------------------------------------------------------------------


def draw_auc_over_time(predictions: Predictions) -> Figure:
    """Draw the mean AUC over folds at each time of the curve; lines above mark the horizons.

    Up to two models have a band of one standard deviation over folds.
    """
    task, ranked = to_survival(from_card(predictions.task)), rank_models(predictions)
    results = collect_fold_results(predictions)
    figure = make_figure(6, 5.4)
    axes = figure.subplots()
    axes.grid(color="#f0f0f0")
    axes.axhline(0.5, color=PALE, linewidth=1, zorder=1)
    has_bands = len(ranked) <= _MAX_BANDS and any(len(folds) > 1 for folds in results.values())
    ends = [
        _draw_auc(axes, np.array(task.curve_times), results[name], index, has_band=has_bands)
        for index, (name, _, _) in enumerate(ranked[:MAX_MODELS])
    ]
    lowest, last = min(low for low, _ in ends), max(*task.horizons, *(end for _, end in ends), 0)
    axes.set_ylim(max(0, math.floor(10 * lowest - 0.5) / 10), 1.01)
    _set_time_limits(axes, task, 0, last or 1.0)
    label_axes(axes, _name_time(task), "AUC(t)", _name_auc(results, has_bands=has_bands))
    _mark_horizons(axes, task, last)
    figure.legend(loc="outside lower left", ncols=2, **_LEGEND)
    return figure


def _draw_auc(
    axes: Axes, times: Floats, folds: Sequence[FoldResult], index: int, *, has_band: bool
) -> tuple[float, float]:
    """Draw a model; return the lowest and the last point."""
    curves = compute_auc_curves(folds)
    mean = average_auc(folds, curves)
    is_known = np.isfinite(mean)
    x, mean, curves = times[is_known], mean[is_known], curves[:, is_known]
    style: dict[str, Any] = {"marker": "o", "markersize": 4, "zorder": 9 - index}
    label = shorten_name(folds[0].model)
    axes.plot(x, mean, label=label, linewidth=2, **style, **line_style(index))
    lowest, last = float(mean.min(initial=0.5)), float(x.max(initial=0))
    if has_band:
        low, high = np.clip([mean - _spread(curves), mean + _spread(curves)], 0, 1)
        axes.fill_between(x, low, high, color=COLORS[index], alpha=0.12, linewidth=0, zorder=2)
        lowest = min(lowest, max(_LEAST_AUC, float(low.min(initial=0.5))))
    return lowest, last


def compute_auc_curves(folds: Sequence[FoldResult]) -> Floats:
    """Return the AUC of a model at each time of the curve, mean over seeds: (folds, times).

    It is NaN where a fold has no case, no control, or no training patient to correct censoring.
    """
    return np.array([_compute_auc_curve(fold) for fold in folds])


def average_auc(folds: Sequence[FoldResult], curves: Floats) -> Floats:
    """Return the mean over folds at each time, weighted as in tables: (times,).

    It is NaN unless half of the folds have a value.

    Args:
        folds: of a model.
        curves: of each (folds, times).
    """
    metrics = folds[0].task.metrics
    shares = share_folds(folds, "auc" if "auc" in metrics else folds[0].task.headline)
    weights = np.ones(len(folds)) if shares is None else shares
    is_known = np.isfinite(curves)
    total = weights @ is_known
    found = np.divide(weights @ np.nan_to_num(curves), total, out=0 * total, where=total > 0)
    is_enough = (total > 0) & (is_known.sum(axis=0) >= len(folds) / 2)
    return np.where(is_enough, found, np.nan)


def _compute_auc_curve(fold: FoldResult) -> Floats:
    times = np.array(to_survival(fold.task).curve_times)
    training = fold.targets if fold.training is None else fold.training
    observed = min(fold.targets[:, 0].max(), censoring_curve(*training.T).times[-1])
    curve, is_known = np.full(len(times), np.nan), times < observed
    if is_known.any():
        ranks = [
            rank_by_survival(of_seed[:, CURVE:][:, is_known], of_seed[:, RISK])
            for of_seed in fold.values
        ]
        args = [(*training.T, *fold.targets.T, of_seed, times[is_known]) for of_seed in ranks]
        of_seeds = [cumulative_auc(*each)[0] for each in args]
        curve[is_known] = np.mean(of_seeds, axis=0)
    return curve


def _spread(curves: Floats) -> Floats:
    """Return the standard deviation over the folds that have a value: 0 of a single one."""
    counts = np.isfinite(curves).sum(axis=0)
    squares = np.nansum((curves - np.nanmean(curves, axis=0)) ** 2, axis=0)
    deviation: Floats = np.sqrt(squares / np.maximum(counts - 1, 1))
    return deviation


def _name_auc(results: dict[str, list[FoldResult]], *, has_bands: bool) -> str:
    folds = max(map(len, results.values()))
    title = "AUC over time" + (", mean over folds" if folds > 1 else "")
    more = f": the {MAX_MODELS} best of {len(results)} models" if len(results) > MAX_MODELS else ""
    return title + (", ± 1 standard deviation" if has_bands else "") + more


def _mark_horizons(axes: Axes, task: Survival, last: float) -> None:
    """Draw a line at each horizon, named above unless the name before is too near."""
    before = -math.inf
    above = axes.secondary_xaxis("top")
    named = []
    for time in task.horizons:
        axes.axvline(time, color=PALE, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
        if time - before > 0.16 * last:
            named.append(time)
            before = time
    above.set_xticks(named, [task.format_time(time) for time in named])
    above.tick_params(length=0, labelsize=9, labelcolor=INK, pad=1)
    above.spines[:].set_visible(False)


# --- calibration ---------------------------------------------------------------------------------


def draw_survival_calibration(predictions: Predictions) -> Figure:
    """Draw predicted against observed survival at the middle horizon, a panel per model.

    Points are fifths of the test patients by their prediction, with the interval of Kaplan-Meier.
    """
    task, found = to_survival(from_card(predictions.task)), risk_groups(predictions)
    ranked = rank_models(predictions)
    shown = [(name, found[name].patients) for name, _, _ in ranked[:MAX_MODELS]]
    columns = min(3, len(shown))
    lines = math.ceil(len(shown) / columns)
    side = 5.4 if columns == 1 else 3.6
    figure = make_figure(side * columns, side * lines + 0.6)
    panels = figure.subplots(lines, columns, squeeze=False)
    for axes in panels.flat[len(shown) :]:
        axes.remove()
    time, counts = _find_middle_horizon(task), list[int]()
    for number, (name, patients) in enumerate(shown):
        axes = panels.flat[number]
        axes.set_aspect("equal")
        draw_diagonal(axes)
        if time is not None:
            groups = _calibrate(task, patients, time)
            _draw_calibration_groups(axes, groups, COLORS[number])
            counts += groups.counts[groups.counts > 0].tolist()
        at = "" if time is None else f" at {task.format_time(time)}"
        y = f"observed survival{at}" if number % columns == 0 else ""
        label_axes(axes, f"predicted survival{at}", y, shorten_name(name, 26))
    _write_note(figure, _describe_calibration(counts), ranked=ranked)
    return figure


def _find_middle_horizon(task: Survival) -> float | None:
    times = tuple(task.horizons) or tuple(task.curve_times)
    return times[len(times) // 2] if times else None


def _calibrate(task: Survival, patients: PatientRisks, time: float) -> CalibrationGroups:
    survival = patients.survival[:, list(task.curve_times).index(time)]
    return calibrate_at(patients.times, patients.events, survival, time, groups=_QUANTILES)


def _draw_calibration_groups(axes: Axes, groups: CalibrationGroups, color: str) -> None:
    is_known = np.isfinite(groups.observed)
    x, y, low, high = (each[is_known] for each in groups[:4])
    errors = np.maximum([y - low, high - y], 0)
    axes.errorbar(
        x, y, errors, color=color, marker="o", markersize=6, linewidth=1.4, capsize=3, zorder=4
    )


def _describe_calibration(counts: Sequence[int]) -> str:
    if not counts:
        return "No survival was predicted that could be compared"
    few, many = min(counts), max(counts)
    size = f"{few:,}" if few == many else f"{few:,} to {many:,}"
    return (
        f"Points: fifths of the test patients by predicted survival, {size} each; observed by "
        "Kaplan-Meier, with 95 % intervals"
    )


# --- style ---------------------------------------------------------------------------------------


def list_ticks(last: float, unit: str) -> list[float]:
    """Return at most seven round times from 0 to the last.

    >>> list_ticks(130, "months")
    [0.0, 24.0, 48.0, 72.0, 96.0, 120.0]
    """
    own = [step for step in _STEPS.get(unit, ()) if 2 * step <= last]
    decade = math.floor(math.log10(last))
    decimal = [float(f"{m}e{power}") for power in (decade - 1, decade) for m in (1, 2, 5)]
    step = next(step for step in (*own, *decimal) if last < _MAX_TICKS * step)
    return [float(step * number) for number in range(int(last / step) + 1)]


def _set_time_limits(axes: Axes, task: Survival, first: float, last: float) -> list[float]:
    """Set limits and ticks of the time axis; return the ticks."""
    ticks = list_ticks(last, task.unit)
    axes.set_xlim(first, 1.02 * last)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    return ticks


def _name_time(task: Survival) -> str:
    return f"time ({task.unit})" if task.unit else "time"


def _write_note(figure: Figure, *sentences: str, ranked: Sequence[object]) -> None:
    """Write what a plot shows below it."""
    omitted = describe_omitted_models(ranked).replace(": the", "The")
    text = " ".join(f"{sentence}." for sentence in (*sentences, omitted) if sentence)
    wrapped = fill(text, int(_CHARS_PER_INCH * figure.get_figwidth()))
    figure.supxlabel(wrapped, x=0.01, ha="left", fontsize=9, color=INK)
