"""Confusion matrices, one per model."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sacmil.evaluation.patient_level import average_by_patient
from sacmil.evaluation.plots._style import (
    INK,
    MAX_MODELS,
    describe_omitted_models,
    rank_by_auc,
    select_model,
    shorten_name,
)
from sacmil.evaluation.tables import select_test_rows
from sacmil.results import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def count_confusions(predictions: Predictions) -> npt.NDArray[np.int64]:
    """Return counts over folds and seeds, (C, C): true class by row, predicted by column."""
    size = len(predictions.classes)
    predicted = predictions.probabilities.argmax(axis=1)
    return np.bincount(predictions.label * size + predicted, minlength=size**2).reshape(size, size)


def draw_confusion(predictions: Predictions) -> Figure:
    """Draw a matrix per model: shares of each true class, and counts over folds and seeds."""
    from matplotlib.figure import Figure

    test = average_by_patient(select_test_rows(predictions))
    everyone = rank_by_auc(test)
    ranked = everyone[:MAX_MODELS]
    columns = min(2, len(ranked))  # more would be too small to read on a phone
    lines = math.ceil(len(ranked) / columns)
    side = 1.2 + 0.75 * len(test.classes)
    size = (max(3.6, columns * side + 1), lines * (side + 0.7) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False)
    for axes in panels.flat[len(ranked) :]:
        axes.remove()
    for number, (name, _) in enumerate(ranked):
        axes = panels.flat[number]
        _draw_matrix(axes, count_confusions(select_model(test, name)))
        axes.set_title(shorten_name(name), loc="left", fontsize=11, color=INK)
        names = [shorten_name(text, 14) for text in test.classes]
        axes.set_xticks(range(len(names)), names, rotation=0 if len(names) < 4 else 45)
        axes.set_yticks(range(len(names)), names if number % columns == 0 else [])
    figure.supxlabel(f"predicted class{describe_omitted_models(everyone)}", fontsize=11, color=INK)
    figure.supylabel("true class", fontsize=11, color=INK)
    return figure


def _draw_matrix(axes: Axes, counts: npt.NDArray[np.int64]) -> None:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.15)
    for (line, column), share in np.ndenumerate(shares):
        text = f"{100 * share:.0f} %\n{counts[line, column]:,}"
        color = "white" if share > 0.6 else INK
        axes.text(column, line, text, ha="center", va="center", color=color, fontsize=10)
    axes.tick_params(length=0, labelsize=10, labelcolor=INK)
    axes.spines[:].set_visible(False)
