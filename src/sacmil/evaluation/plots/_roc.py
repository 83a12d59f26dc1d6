"""ROC curves, averaged over folds for each model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sacmil.evaluation.patient_level import average_by_patient
from sacmil.evaluation.plots._style import (
    COLORS,
    MAX_MODELS,
    PALE,
    Floats,
    label_axes,
    line_style,
    make_square_figure,
    rank_by_auc,
    select_model,
    shorten_name,
)
from sacmil.evaluation.tables import TableStyle, select_test_rows
from sacmil.results import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BANDS = 3
"""Maximum number of bands; more hide one another."""
ROC_GRID = np.linspace(0, 1, 201)


def draw_roc(predictions: Predictions) -> Figure:
    """Draw the mean curve over folds per model; up to three models have a standard deviation band.

    With more than two classes, the curve is the mean over classes, each against the rest.
    """
    test = average_by_patient(select_test_rows(predictions))
    ranked = rank_by_auc(test)
    figure, axes = make_square_figure()
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1, zorder=1)
    for name, _ in ranked[MAX_MODELS:]:
        _draw_curve(
            axes,
            compute_fold_curves(select_model(test, name)),
            color="#dddddd",
            linewidth=1,
            zorder=2,
        )
    for index, (name, auc) in enumerate(ranked[:MAX_MODELS]):
        curves = compute_fold_curves(select_model(test, name))
        label = f"{shorten_name(name)}  {TableStyle().format_number(auc)}"
        _draw_curve(axes, curves, label=label, linewidth=2, zorder=9 - index, **line_style(index))
        if len(ranked) <= MAX_BANDS and len(curves) > 1:
            _draw_band(axes, curves, COLORS[index])
    if len(ranked) > MAX_MODELS:
        axes.plot([], [], color="#dddddd", label=f"{len(ranked) - MAX_MODELS} others")
    kind = "AUC" if len(test.classes) == 2 else "AUC, mean over classes"
    axes.legend(loc="lower right", frameon=False, title=kind, alignment="left")
    positive = f" ({shorten_name(test.classes[1])})" if len(test.classes) == 2 else ""
    label_axes(axes, "1 − specificity", f"sensitivity{positive}", _make_title(test, ranked))
    return figure


def _make_title(test: Predictions, ranked: Sequence[tuple[str, float]]) -> str:
    folds = len(np.unique(test.fold))
    if folds == 1:
        return "ROC"
    band = ", ± 1 standard deviation" if len(ranked) <= MAX_BANDS else ""
    return f"ROC, mean over {folds} folds{band}"


def compute_fold_curves(predictions: Predictions) -> Floats:
    """Return the sensitivity of a model, averaged over seeds and classes: (folds, ROC_GRID)."""
    curves = []
    for fold in np.unique(predictions.fold):
        rows_of_fold = predictions.select(predictions.fold == fold)
        seeds = [
            rows_of_fold.select(rows_of_fold.seed == seed) for seed in np.unique(rows_of_fold.seed)
        ]
        found = [curve for seed in seeds for curve in _compute_class_curves(seed)]
        if found:
            curves.append(np.mean(found, axis=0))
    return np.array(curves, dtype=np.float64).reshape(len(curves), len(ROC_GRID))


def _compute_class_curves(rows: Predictions) -> Iterator[Floats]:
    classes = range(len(rows.classes)) if len(rows.classes) > 2 else [1]
    for index in classes:
        positive = rows.label == index
        if 0 < positive.sum() < len(positive):
            yield interpolate_roc(positive, rows.probabilities[:, index])


def interpolate_roc(positive: npt.NDArray[np.bool_], scores: Floats) -> Floats:
    """Return the ROC curve at each 1 − specificity of ROC_GRID; ties are one slanted step."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    hits = np.cumsum(positive[order])[last]
    alarms = last + 1 - hits
    x = np.concatenate([[0], alarms / (~positive).sum()])
    y = np.concatenate([[0], hits / positive.sum()])
    return np.asarray(np.interp(ROC_GRID, x, y), dtype=np.float64)


def _draw_curve(axes: Axes, curves: Floats, **style: Any) -> None:
    if len(curves) == 0:
        axes.plot([], [], **style)
        return
    mean = curves.mean(axis=0)
    axes.plot(np.append(0, ROC_GRID), np.append(0, mean), **style)


def _draw_band(axes: Axes, curves: Floats, color: str) -> None:
    mean, deviation = curves.mean(axis=0), curves.std(axis=0, ddof=1)
    low, high = np.clip([mean - deviation, mean + deviation], 0, 1)
    axes.fill_between(ROC_GRID, low, high, color=color, alpha=0.15, linewidth=0, zorder=2)
