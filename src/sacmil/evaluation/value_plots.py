"""Plots of predicted numbers and of several labels; each function returns a Figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sacmil.evaluation.fold_results import select_test_rows
from sacmil.evaluation.plots import (
    COLORS,
    INK,
    MAX_MODELS,
    PALE,
    ROC_GRID,
    describe_omitted_models,
    draw_diagonal,
    interpolate_roc,
    label_axes,
    line_style,
    make_figure,
    rank_models,
    shorten_name,
)
from sacmil.evaluation.table_format import DEFAULT_STYLE
from sacmil.metrics.regression import r2
from sacmil.results import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
_MAX_LABELS = 6
"""Labels with a panel of their own."""


def draw_scatter(predictions: Predictions) -> Figure:
    """Draw predicted against true numbers with the identity line: a row of panels per model."""
    ranked, names = rank_models(predictions), predictions.task.target_columns
    shown = ranked[: MAX_MODELS if len(names) == 1 else 2]
    figure, panels = _make_panels(len(shown), len(names))
    for line, (model, _, rows) in zip(panels, shown, strict=True):
        for column, (axes, name) in enumerate(zip(line, names, strict=True)):
            truth, found = rows.targets[:, column], rows.values[:, column]
            _draw_identity(axes, np.concatenate([truth, found]))
            axes.scatter(truth, found, s=14, color=COLORS[0], alpha=0.5, linewidth=0, zorder=3)
            value = DEFAULT_STYLE.format_number(r2(truth, found))
            target = shorten_name(name)
            title = f"{shorten_name(model)}: {target}, R² {value}"
            label_axes(axes, f"true {target}", f"predicted {target}", title)
    several = len(np.unique(select_test_rows(predictions).fold)) > 1
    pooled = "R² is of all folds together; tables have the mean over folds" if several else ""
    notes = filter(None, (pooled, describe_omitted_models(ranked).lstrip(": ")))
    figure.supxlabel("; ".join(notes), fontsize=10, color=INK)
    return figure


def draw_residuals(predictions: Predictions) -> Figure:
    """Draw the error against the predicted number: a trend is an error that could be corrected."""
    ranked, names = rank_models(predictions), predictions.task.target_columns
    shown = ranked[: MAX_MODELS if len(names) == 1 else 2]
    figure, panels = _make_panels(len(shown), len(names))
    for line, (model, _, rows) in zip(panels, shown, strict=True):
        for column, (axes, name) in enumerate(zip(line, names, strict=True)):
            found = rows.values[:, column]
            error = found - rows.targets[:, column]
            axes.axhline(0, color=PALE, linewidth=1, zorder=1)
            axes.scatter(found, error, s=14, color=COLORS[1], alpha=0.5, linewidth=0, zorder=3)
            target = shorten_name(name)
            label_axes(axes, f"predicted {target}", "predicted − true", shorten_name(model))
    return figure


def draw_label_roc(predictions: Predictions) -> Figure:
    """Draw the ROC curves of each label, all models in a panel."""
    ranked, names = rank_models(predictions), predictions.task.target_columns[:_MAX_LABELS]
    columns = min(3, len(names))
    figure = make_figure(4 * columns, 4.3 * math.ceil(len(names) / columns))
    panels = figure.subplots(math.ceil(len(names) / columns), columns, squeeze=False)
    for axes in panels.flat[len(names) :]:
        axes.remove()
    for column, name in enumerate(names):
        axes = panels.flat[column]
        axes.set_aspect("equal")
        draw_diagonal(axes)
        for number, (model, _, rows) in enumerate(ranked[:MAX_MODELS]):
            truth, p = rows.targets[:, column], rows.values[:, column]
            known = ~np.isnan(truth)
            if len(np.unique(truth[known])) == 2:
                curve = np.append(0, interpolate_roc(truth[known] == 1, p[known]))
                label = shorten_name(model, 18)
                axes.plot(np.append(0, ROC_GRID), curve, label=label, **line_style(number))
        label_axes(
            axes, "1 − specificity", "sensitivity" if column == 0 else "", shorten_name(name)
        )
    drawn = [axes for axes in panels.flat[: len(names)] if axes.get_legend_handles_labels()[1]]
    for axes in drawn[:1]:
        axes.legend(loc="lower right", frameon=False, fontsize=9)
    return figure


def _make_panels(lines: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure and its panels: by model, then by target; of one target, in two columns."""
    across = min(2, lines) if columns == 1 else columns
    down = math.ceil(lines * columns / across)
    figure = make_figure(4.2 * across, 4.2 * down)
    found = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in found[lines * columns :]:
        axes.remove()
    return figure, [found[line * columns : (line + 1) * columns] for line in range(lines)]


def _draw_identity(axes: Axes, values: Floats) -> None:
    low, high = float(values.min()), float(values.max())
    margin = 0.04 * (high - low or 1)
    ends = (low - margin, high + margin)
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.set_aspect("equal")
    axes.grid(color="#f0f0f0")
    axes.plot(ends, ends, color=PALE, linewidth=1, zorder=1)
