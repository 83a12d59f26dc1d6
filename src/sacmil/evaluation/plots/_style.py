"""Shared style of the plots: colours, axes, short names and the order of models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sacmil.evaluation.metrics import METRICS
from sacmil.evaluation.printable import make_printable
from sacmil.evaluation.tables import UNDEFINED
from sacmil.results import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 1)), (0, (10, 3)))
MAX_MODELS = len(COLORS)
"""Number of models with a colour of their own; the others are grey or omitted."""
INK, PALE = "#333333", "#bbbbbb"
MAX_NAME_CHARS = 32
"""Maximum length of a displayed name."""


def select_model(predictions: Predictions, model: str) -> Predictions:
    return predictions.select(predictions.model == model)


def rank_by_auc(test: Predictions) -> list[tuple[str, float]]:
    """Return models and their mean AUC, best first, so a model has one colour in all plots."""
    found = [
        (str(name), _mean_fold_auc(select_model(test, name))) for name in np.unique(test.model)
    ]
    return sorted(found, key=lambda pair: (-np.nan_to_num(pair[1], nan=-1.0), pair[0]))


def _mean_fold_auc(model_rows: Predictions) -> float:
    folds = []
    for fold in np.unique(model_rows.fold):
        seeds = [
            (model_rows.fold == fold) & (model_rows.seed == seed)
            for seed in np.unique(model_rows.seed)
        ]
        values = [
            METRICS["auc"](model_rows.label[rows], model_rows.probabilities[rows])
            for rows in seeds
            if rows.any()
        ]
        folds.append(np.mean(values))
    return float(np.mean(folds)) if folds else math.nan


def describe_omitted_models(ranked: Sequence[tuple[str, float]]) -> str:
    return f": the {MAX_MODELS} best of {len(ranked)} models" if len(ranked) > MAX_MODELS else ""


def shorten_name(name: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """Return a short name that matplotlib does not read as mathematics."""
    plain = make_printable(str(name))
    cut = plain if len(plain) <= max_chars else plain[: max_chars - 1] + "…"
    # a leading underscore would hide a line from the legend
    return (" " + cut if cut.startswith("_") else cut or UNDEFINED).replace("$", r"\$")


def line_style(index: int) -> dict[str, Any]:
    return {"color": COLORS[index], "linestyle": DASHES[index]}


def make_square_figure() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    axes.set_aspect("equal")
    _set_unit_limits(axes)
    return figure, axes


def make_stacked_figure() -> tuple[Figure, tuple[Axes, Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 7), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=[4, 1])
    _set_unit_limits(above)
    return figure, (above, below)


def _set_unit_limits(axes: Axes) -> None:
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.01, 1.01)
    axes.grid(color="#f0f0f0")


def label_axes(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x, fontsize=11, color=INK)
    axes.set_ylabel(y, fontsize=11, color=INK)
    axes.set_title(title, loc="left", fontsize=12, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)
    axes.tick_params(color=PALE, labelcolor=INK, labelsize=10)
    axes.set_axisbelow(True)
