"""ROC curves, a mean over folds for each model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sacmil.evaluation.plots._look import (
    COLOURS,
    MOST,
    PALE,
    Floats,
    by_auc,
    look,
    name_axes,
    of_model,
    short,
    square,
)
from sacmil.evaluation.tables import Style, of_test
from sacmil.evaluation.units import to_units
from sacmil.results import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BANDS = 3
"""More than so many bands hide one another."""
GRID = np.linspace(0, 1, 201)


def draw_roc(predictions: Predictions) -> Figure:
    """Mean curve over folds per model; a band of one standard deviation for a few models.

    Of more than two classes the curve is the mean of those of each class against the rest.
    """
    test = to_units(of_test(predictions))
    ranked = by_auc(test)
    figure, axes = square()
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1, zorder=1)
    for name, _ in ranked[MOST:]:
        _draw_curve(axes, fold_curves(of_model(test, name)), color="#dddddd", linewidth=1, zorder=2)
    for place, (name, auc) in enumerate(ranked[:MOST]):
        curves = fold_curves(of_model(test, name))
        label = f"{short(name)}  {Style().number(auc)}"
        _draw_curve(axes, curves, label=label, linewidth=2, zorder=9 - place, **look(place))
        if len(ranked) <= BANDS and len(curves) > 1:
            _draw_band(axes, curves, COLOURS[place])
    if len(ranked) > MOST:
        axes.plot([], [], color="#dddddd", label=f"{len(ranked) - MOST} others")
    kind = "AUC" if len(test.classes) == 2 else "AUC, mean over classes"
    axes.legend(loc="lower right", frameon=False, title=kind, alignment="left")
    positive = f" ({short(test.classes[1])})" if len(test.classes) == 2 else ""
    name_axes(axes, "1 − specificity", f"sensitivity{positive}", _roc_title(test, ranked))
    return figure


def _roc_title(test: Predictions, ranked: Sequence[tuple[str, float]]) -> str:
    folds = len(np.unique(test.fold))
    if folds == 1:
        return "ROC"
    band = ", ± 1 standard deviation" if len(ranked) <= BANDS else ""
    return f"ROC, mean over {folds} folds{band}"


def fold_curves(predictions: Predictions) -> Floats:
    """(folds, GRID): sensitivity of one model in each fold, the mean over its seeds and classes."""
    curves = []
    for fold in np.unique(predictions.fold):
        part = predictions.where(predictions.fold == fold)
        seeds = [part.where(part.seed == seed) for seed in np.unique(part.seed)]
        found = [curve for seed in seeds for curve in _class_curves(seed)]
        if found:
            curves.append(np.mean(found, axis=0))
    return np.array(curves, dtype=np.float64).reshape(len(curves), len(GRID))


def _class_curves(part: Predictions) -> Iterator[Floats]:
    classes = range(len(part.classes)) if len(part.classes) > 2 else [1]
    for index in classes:
        positive = part.label == index
        if 0 < positive.sum() < len(positive):
            yield sensitivity(positive, part.probabilities[:, index])


def sensitivity(positive: npt.NDArray[np.bool_], scores: Floats) -> Floats:
    """The ROC curve at every 1 − specificity of GRID; equal scores are one step, a slanted one."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    hits = np.cumsum(positive[order])[last]
    alarms = last + 1 - hits
    x = np.concatenate([[0], alarms / (~positive).sum()])
    y = np.concatenate([[0], hits / positive.sum()])
    return np.asarray(np.interp(GRID, x, y), dtype=np.float64)


def _draw_curve(axes: Axes, curves: Floats, **look: Any) -> None:
    if len(curves) == 0:
        axes.plot([], [], **look)
        return
    mean = curves.mean(axis=0)
    axes.plot(np.append(0, GRID), np.append(0, mean), **look)


def _draw_band(axes: Axes, curves: Floats, colour: str) -> None:
    mean, deviation = curves.mean(axis=0), curves.std(axis=0, ddof=1)
    low, high = np.clip([mean - deviation, mean + deviation], 0, 1)
    axes.fill_between(GRID, low, high, color=colour, alpha=0.15, linewidth=0, zorder=2)
