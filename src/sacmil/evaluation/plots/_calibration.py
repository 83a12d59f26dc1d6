"""Whether probabilities come true as often as they promise."""

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
    """What was promised and what came true, per bin of the promise."""

    predicted: Floats
    """(BINS,), mean probability; NaN in an empty bin."""
    observed: Floats
    """(BINS,), share that came true."""
    share: Floats
    """(BINS,), of all predictions."""


def reliability_curve(predictions: Predictions) -> ReliabilityCurve:
    """Of two classes, how often class 1 is true when promised; of more, the likeliest class."""
    promise, truth = _select_predicted(predictions)
    place = np.minimum((promise * BINS).astype(int), BINS - 1)
    counts = np.bincount(place, minlength=BINS).astype(np.float64)
    with np.errstate(invalid="ignore"):
        promised = np.bincount(place, promise, BINS) / counts
        observed = np.bincount(place, truth, BINS) / counts
    return ReliabilityCurve(promised, observed, counts / max(len(promise), 1))


def _select_predicted(predictions: Predictions) -> tuple[Floats, Floats]:
    p = predictions.probabilities
    if len(predictions.classes) == 2:
        return p[:, 1], (predictions.label == 1).astype(np.float64)
    return p.max(axis=1), (p.argmax(axis=1) == predictions.label).astype(np.float64)


def draw_calibration(predictions: Predictions) -> Figure:
    """Promised against observed, over a histogram of what is promised.

    A point is as large as its bin is full: small ones mean little.
    """
    test = average_by_patient(select_test_rows(predictions))
    ranked = rank_by_auc(test)
    figure, (axes, below) = make_stacked_figure()
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1, zorder=1)
    for place, (name, _) in enumerate(ranked[:MAX_MODELS]):
        found = reliability_curve(select_model(test, name))
        full = found.share > 0
        x, y, colour = found.predicted[full], found.observed[full], COLORS[place]
        axes.plot(x, y, label=shorten_name(name), linewidth=1.5, zorder=3, **line_style(place))
        axes.scatter(x, y, s=8 + 400 * found.share[full], color=colour, linewidth=0, zorder=4)
        below.stairs(found.share, np.linspace(0, 1, BINS + 1), color=colour, linewidth=1.6)
    axes.legend(loc="upper left", frameon=False)
    two = len(test.classes) == 2
    what = shorten_name(test.classes[1]) if two else "the likeliest class"
    label_axes(axes, "", "share that came true", f"Calibration{describe_omitted_models(ranked)}")
    label_axes(below, f"probability of {what}", "predictions", "")
    below.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    return figure
