"""Plots of predictions: ROC, calibration, confusion and ranks; each function returns a Figure.

Only test sets are plotted, with the patient as the unit where possible.
Figures are made without pyplot, so a caller's windows, styles and open figures are untouched.
Colours are those of Okabe and Ito, which colour-blind readers can distinguish. Every line also has
its own dash pattern, for printers.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.atomic import write_file
from sacmil.errors import MissingExtraError
from sacmil.evaluation.comparison import PairComparison, is_significant
from sacmil.evaluation.fold_results import average_by_patient, group_rows, select_test_rows
from sacmil.evaluation.table_format import DEFAULT_STYLE, UNDEFINED, make_printable
from sacmil.metrics.classification import cumulate_counts
from sacmil.results import Predictions
from sacmil.tasks import from_card

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
MAX_BANDS = 3
"""Maximum number of bands; more hide one another."""
ROC_GRID = np.linspace(0, 1, 201)
BINS = 10
"""Bins of predicted probabilities in calibration plots."""
_FAINT = "#dddddd"
"""Colour of the models without a colour of their own."""


# --- files ---------------------------------------------------------------------------------------


def check_matplotlib(purpose: str = "drawing figures") -> None:
    """Raise an error if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("plots", purpose)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format of the suffix (.png, .svg, .pdf), atomically."""
    write_file(path, render_figure(figure, Path(path).suffix.lstrip(".").lower()))


def render_figure(figure: Figure, kind: str) -> bytes:
    """Return a figure as the bytes of a file; equal figures give equal bytes."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with (
        rc_context({"svg.fonttype": "none", "svg.hashsalt": "sacmil"}),  # text stays text
        warnings.catch_warnings(),
    ):
        # the viewer of the SVG has the letters that matplotlib's font lacks
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(buffer, format=kind, dpi=200, metadata=dates.get(kind))
    return buffer.getvalue()


# --- ROC curves ----------------------------------------------------------------------------------


def draw_roc(predictions: Predictions) -> Figure:
    """Draw the mean curve over folds per model; up to three models have a standard deviation band.

    With more than two classes, the curve is the mean over classes, each against the rest.
    """
    ranked, classes = rank_models(predictions), predictions.classes
    figure = make_figure(6, 6)
    axes = figure.subplots()
    axes.set_aspect("equal")
    draw_diagonal(axes)
    for _, _, rows in ranked[MAX_MODELS:]:
        _draw_curve(axes, compute_fold_curves(rows), color=_FAINT, linewidth=1, zorder=2)
    for index, (name, auc, rows) in enumerate(ranked[:MAX_MODELS]):
        curves = compute_fold_curves(rows)
        label = f"{shorten_name(name)}  {DEFAULT_STYLE.format_number(auc)}"
        _draw_curve(axes, curves, label=label, linewidth=2, zorder=9 - index, **line_style(index))
        if len(ranked) <= MAX_BANDS and len(curves) > 1:
            _draw_band(axes, curves, COLORS[index])
    if len(ranked) > MAX_MODELS:
        axes.plot([], [], color=_FAINT, label=f"{len(ranked) - MAX_MODELS} others")
    kind = "AUC" if len(classes) == 2 else "AUC, mean over classes"
    axes.legend(loc="lower right", frameon=False, title=kind, alignment="left")
    positive = f" ({shorten_name(classes[1])})" if len(classes) == 2 else ""
    folds = len(np.unique(select_test_rows(predictions).fold))
    band = ", ± 1 standard deviation" if len(ranked) <= MAX_BANDS else ""
    title = "ROC" if folds == 1 else f"ROC, mean over {folds} folds{band}"
    label_axes(axes, "1 − specificity", f"sensitivity{positive}", title)
    return figure


def compute_fold_curves(predictions: Predictions) -> Floats:
    """Return the sensitivity of a model, averaged over seeds and classes: (folds, ROC_GRID)."""
    curves = []
    for fold in group_rows(predictions, "fold").values():
        seeds = group_rows(fold, "seed").values()
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
    (hits,), (alarms,) = cumulate_counts(positive, scores, np.ones((1, len(scores))))
    return np.asarray(np.interp(ROC_GRID, alarms / alarms[-1], hits / hits[-1]), dtype=np.float64)


def _draw_curve(axes: Axes, curves: Floats, **style: Any) -> None:
    if len(curves):
        axes.plot(np.append(0, ROC_GRID), np.append(0, curves.mean(axis=0)), **style)
    else:
        axes.plot([], [], **style)


def _draw_band(axes: Axes, curves: Floats, color: str) -> None:
    mean, deviation = curves.mean(axis=0), curves.std(axis=0, ddof=1)
    low, high = np.clip([mean - deviation, mean + deviation], 0, 1)
    axes.fill_between(ROC_GRID, low, high, color=color, alpha=0.15, linewidth=0, zorder=2)


# --- calibration ---------------------------------------------------------------------------------


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
    p = predictions.probabilities
    if len(predictions.classes) == 2:
        probability, truth = p[:, 1], predictions.label == 1
    else:
        probability, truth = p.max(axis=1), p.argmax(axis=1) == predictions.label
    bins = np.minimum((probability * BINS).astype(int), BINS - 1)
    counts = np.bincount(bins, minlength=BINS).astype(np.float64)
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(bins, probability, BINS) / counts
        observed = np.bincount(bins, truth, BINS) / counts
    return ReliabilityCurve(predicted, observed, counts / max(len(probability), 1))


def draw_calibration(predictions: Predictions) -> Figure:
    """Draw predicted probability against observed frequency, over a histogram of predictions.

    The area of a point is its bin's share of the predictions.
    """
    ranked, classes = rank_models(predictions), predictions.classes
    figure = make_figure(6, 7)
    axes, below = figure.subplots(2, sharex=True, height_ratios=[4, 1])
    draw_diagonal(axes)
    for index, (name, _, rows) in enumerate(ranked[:MAX_MODELS]):
        found = reliability_curve(rows)
        full = found.share > 0
        x, y, color = found.predicted[full], found.observed[full], COLORS[index]
        axes.plot(x, y, label=shorten_name(name), linewidth=1.5, zorder=3, **line_style(index))
        axes.scatter(x, y, s=8 + 400 * found.share[full], color=color, linewidth=0, zorder=4)
        below.stairs(found.share, np.linspace(0, 1, BINS + 1), color=color, linewidth=1.6)
    axes.legend(loc="upper left", frameon=False)
    subject = shorten_name(classes[1]) if len(classes) == 2 else "the most probable class"
    label_axes(axes, "", "observed frequency", f"Calibration{describe_omitted_models(ranked)}")
    label_axes(below, f"probability of {subject}", "predictions", "")
    below.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    return figure


# --- confusion matrices --------------------------------------------------------------------------


def count_confusions(predictions: Predictions) -> npt.NDArray[np.int64]:
    """Return counts over folds and seeds, (C, C): true class by row, predicted by column."""
    predicted = from_card(predictions.task).predict_levels(predictions.values)
    counts = np.zeros((len(predictions.classes),) * 2, dtype=np.int64)
    np.add.at(counts, (predictions.label, predicted), 1)
    return counts


def draw_confusion(predictions: Predictions) -> Figure:
    """Draw a matrix per model: shares of each true class, and counts over folds and seeds."""
    everyone = rank_models(predictions)
    ranked = everyone[:MAX_MODELS]
    names = [shorten_name(text, 14) for text in predictions.classes]
    columns = min(2, len(ranked))  # more would be too small to read on a phone
    lines = math.ceil(len(ranked) / columns)
    side = 1.2 + 0.75 * len(names)
    figure = make_figure(max(3.6, columns * side + 1), lines * (side + 0.7) + 0.5)
    panels = figure.subplots(lines, columns, squeeze=False)
    for axes in panels.flat[len(ranked) :]:
        axes.remove()
    for number, (name, _, rows) in enumerate(ranked):
        axes = panels.flat[number]
        _draw_matrix(axes, count_confusions(rows))
        axes.set_title(shorten_name(name), loc="left", fontsize=11, color=INK)
        axes.set_xticks(range(len(names)), names, rotation=0 if len(names) < 4 else 45)
        axes.set_yticks(range(len(names)), names if number % columns == 0 else [])
    noun = from_card(predictions.task).level_noun
    below = f"predicted {noun}{describe_omitted_models(everyone)}"
    figure.supxlabel(below, fontsize=11, color=INK)
    figure.supylabel(f"true {noun}", fontsize=11, color=INK)
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


# --- ranks ---------------------------------------------------------------------------------------


def draw_ranks(
    ranks: Mapping[str, float],
    comparisons: Sequence[PairComparison],
    *,
    title: str = "AUC",
    level: float = 0.95,
) -> Figure:
    """Draw the mean rank per model, best on top; a bar joins models without significant difference.

    Args:
        ranks: mean rank over folds by model.
        comparisons: of every pair; if some are missing, no bars are drawn.
        title: of the metric of the ranks.
        level: a difference is significant if p after Holm is below 1 - level.
    """
    ordered = sorted(ranks, key=lambda name: (ranks[name], name))
    groups = find_indistinct_groups(ordered, comparisons, level=level)
    figure = make_figure(7, 1.3 + 0.34 * len(ordered))
    axes = figure.subplots()
    for line, name in enumerate(ordered):
        axes.plot([1, ranks[name]], [line, line], color="#e4e4e4", linewidth=1.5, zorder=1)
        axes.plot(ranks[name], line, "o", color=COLORS[0], markersize=8, zorder=3)
        point, text = (ranks[name], line), f"{ranks[name]:.1f}"
        axes.annotate(text, point, (9, 0), textcoords="offset points", va="center", color=INK)
    right = max(len(ordered), 2)
    for index, group in enumerate(groups):
        x = right + 0.06 * right * (index + 1.5)
        axes.plot([x, x], [group[0] - 0.25, group[-1] + 0.25], color=INK, linewidth=3.5)
    axes.set_yticks(range(len(ordered)), [shorten_name(name) for name in ordered])
    axes.set_ylim(len(ordered) - 0.5, -0.5)
    axes.set_xlim(0.9, right * (1.06 + 0.06 * (len(groups) + 1)))
    axes.set_xticks(range(1, right + 1, math.ceil(right / 10)))
    note = ": models joined by a bar do not differ significantly" if groups else ""
    if not groups and _has_all_pairs(ordered, comparisons):
        note = ": all models differ significantly"
    label_axes(axes, f"mean rank by {shorten_name(title, 60)} (1 is best)", "", f"Ranks{note}")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def find_indistinct_groups(
    ordered: Sequence[str], comparisons: Sequence[PairComparison], *, level: float = 0.95
) -> list[range]:
    """Return the longest runs of neighbours in rank without a significant difference."""
    if not _has_all_pairs(ordered, comparisons):
        return []  # models that were not compared must not look equal
    significant = {
        frozenset((c.first, c.second)) for c in comparisons if is_significant(c, level=level)
    }
    found: list[range] = []
    for start in range(len(ordered)):
        end = start + 1
        while end < len(ordered) and not any(
            frozenset((ordered[end], name)) in significant for name in ordered[start:end]
        ):
            end += 1
        if end - start > 1 and (not found or end > found[-1].stop):
            found.append(range(start, end))
    return found


def _has_all_pairs(ordered: Sequence[str], comparisons: Sequence[PairComparison]) -> bool:
    compared = {frozenset((pair.first, pair.second)) for pair in comparisons}
    return len(compared) == len(ordered) * (len(ordered) - 1) // 2


# --- style ---------------------------------------------------------------------------------------


def rank_models(predictions: Predictions) -> list[tuple[str, float, Predictions]]:
    """Return models, their mean headline metric and their test rows by unit, best first.

    The order gives a model the same colour in all plots.
    """
    models = group_rows(average_by_patient(select_test_rows(predictions)), "model")
    found = [(name, _mean_over_folds(rows), rows) for name, rows in models.items()]
    task = from_card(predictions.task)
    sign = 1 if task.get_metric(task.headline).lower_is_better else -1
    return sorted(found, key=lambda model: (math.isnan(model[1]), sign * model[1], model[0]))


def _mean_over_folds(rows: Predictions) -> float:
    task = from_card(rows.task)
    metric, folds = task.get_metric(task.headline), []
    for fold in group_rows(rows, "fold").values():
        seeds = group_rows(fold, "seed").values()
        folds.append(np.mean([metric.compute(seed.targets, seed.values) for seed in seeds]))
    return float(np.mean(folds))


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


def make_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def draw_diagonal(axes: Axes) -> None:
    """Draw the diagonal of axes that go from 0 to 1."""
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.01, 1.01)
    axes.grid(color="#f0f0f0")
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1, zorder=1)


def label_axes(axes: Axes, x: str, y: str, title: str) -> None:
    """Write the names of both axes and the title, in the style of all plots."""
    axes.set_xlabel(x, fontsize=11, color=INK)
    axes.set_ylabel(y, fontsize=11, color=INK)
    axes.set_title(title, loc="left", fontsize=12, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)
    axes.tick_params(color=PALE, labelcolor=INK, labelsize=10)
    axes.set_axisbelow(True)
