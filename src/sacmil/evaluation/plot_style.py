"""Shared style of the plots: colours, axes, short names and the order of models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sacmil.evaluation.fold_results import group_rows
from sacmil.evaluation.metrics import METRICS
from sacmil.evaluation.table_format import UNDEFINED, make_printable
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


def rank_by_auc(test: Predictions) -> list[tuple[str, float, Predictions]]:
    """Return models, their mean AUC and their rows, best first.

    The order gives a model the same colour in all plots.
    """
    found = [(name, _mean_fold_auc(rows), rows) for name, rows in group_rows(test, "model").items()]
    return sorted(found, key=lambda model: (-np.nan_to_num(model[1], nan=-1.0), model[0]))


def _mean_fold_auc(rows: Predictions) -> float:
    folds = []
    for fold in group_rows(rows, "fold").values():
        seeds = group_rows(fold, "seed").values()
        folds.append(np.mean([METRICS["auc"](seed.label, seed.probabilities) for seed in seeds]))
    return float(np.mean(folds)) if folds else math.nan


def describe_omitted_models(ranked: Sequence[object]) -> str:
    """Return a part of a title if only the best models are drawn."""
    return f": the {MAX_MODELS} best of {len(ranked)} models" if len(ranked) > MAX_MODELS else ""


def shorten_name(name: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """Return a short name that matplotlib does not read as mathematics."""
    plain = make_printable(str(name))
    cut = plain if len(plain) <= max_chars else plain[: max_chars - 1] + "…"
    # a leading underscore would hide a line from the legend
    return (" " + cut if cut.startswith("_") else cut or UNDEFINED).replace("$", r"\$")


def line_style(index: int) -> dict[str, Any]:
    """Return the colour and dashes of a model."""
    return {"color": COLORS[index], "linestyle": DASHES[index]}


def make_square_figure() -> tuple[Figure, Axes]:
    """Return a square figure whose axes go from 0 to 1."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    axes.set_aspect("equal")
    _set_unit_limits(axes)
    return figure, axes


def make_stacked_figure() -> tuple[Figure, tuple[Axes, Axes]]:
    """Return a figure of two plots, the upper from 0 to 1, the lower for a histogram."""
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
    """Write the names of both axes and the title, in the style of all plots."""
    axes.set_xlabel(x, fontsize=11, color=INK)
    axes.set_ylabel(y, fontsize=11, color=INK)
    axes.set_title(title, loc="left", fontsize=12, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)
    axes.tick_params(color=PALE, labelcolor=INK, labelsize=10)
    axes.set_axisbelow(True)
