"""Calibration plots: predicted probability against observed frequency."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sacmil.evaluation.patient_level import average_by_patient
from sacmil.evaluation.plots._style import (
    COLORS,
    MAX_MODELS,
    PALE,
    Floats,
    describe_omitted_models,
    label_axes,
    line_style,
    make_stacked_figure,
    rank_by_auc,
    select_model,
    shorten_name,
)
from sacmil.evaluation.tables import select_test_rows
from sacmil.results import Predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 10


class ReliabilityCurve(NamedTuple):
    """Predicted probability and observed frequency per bin."""

    predicted: Floats
    """(BINS,), mean probability; NaN in an empty bin."""
    observed: Floats
    """(BINS,), observed frequency."""
    share: Floats
    """(BINS,), share of all predictions."""


def reliability_curve(predictions: Predictions) -> ReliabilityCurve:
    """Return the reliability of class 1 of two classes, or of the most probable class of more."""
    probability, truth = _select_predicted(predictions)
    bins = np.minimum((probability * BINS).astype(int), BINS - 1)
    counts = np.bincount(bins, minlength=BINS).astype(np.float64)
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(bins, probability, BINS) / counts
        observed = np.bincount(bins, truth, BINS) / counts
    return ReliabilityCurve(predicted, observed, counts / max(len(probability), 1))


def _select_predicted(predictions: Predictions) -> tuple[Floats, Floats]:
    p = predictions.probabilities
    if len(predictions.classes) == 2:
        return p[:, 1], (predictions.label == 1).astype(np.float64)
    return p.max(axis=1), (p.argmax(axis=1) == predictions.label).astype(np.float64)


def draw_calibration(predictions: Predictions) -> Figure:
    """Draw predicted probability against observed frequency, over a histogram of predictions.

    The area of a point is its bin's share of the predictions.
    """
    test = average_by_patient(select_test_rows(predictions))
    ranked = rank_by_auc(test)
    figure, (axes, below) = make_stacked_figure()
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1, zorder=1)
    for index, (name, _) in enumerate(ranked[:MAX_MODELS]):
        found = reliability_curve(select_model(test, name))
        full = found.share > 0
        x, y, color = found.predicted[full], found.observed[full], COLORS[index]
        axes.plot(x, y, label=shorten_name(name), linewidth=1.5, zorder=3, **line_style(index))
        axes.scatter(x, y, s=8 + 400 * found.share[full], color=color, linewidth=0, zorder=4)
        below.stairs(found.share, np.linspace(0, 1, BINS + 1), color=color, linewidth=1.6)
    axes.legend(loc="upper left", frameon=False)
    two = len(test.classes) == 2
    subject = shorten_name(test.classes[1]) if two else "the most probable class"
    label_axes(axes, "", "observed frequency", f"Calibration{describe_omitted_models(ranked)}")
    label_axes(below, f"probability of {subject}", "predictions", "")
    below.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    return figure
