"""Pictures of predictions: ROC, calibration, confusion and ranks; each function returns a Figure.

Only the test part is drawn, a point of evidence being a patient wherever it can be.
Figures are made without pyplot, so that no window, style or open figure of a caller is touched.
Colours are those of Okabe and Ito, which colour-blind readers can tell apart; every line has a
dash pattern of its own too, for printers.
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

from sacmil.atomic import whole_file
from sacmil.errors import MissingExtraError
from sacmil.evaluation.claims import is_claimed
from sacmil.evaluation.comparison import Comparison
from sacmil.evaluation.metrics import METRICS, TITLES
from sacmil.evaluation.printable import printable
from sacmil.evaluation.tables import NOTHING, Style, of_test
from sacmil.evaluation.units import to_units
from sacmil.results import Predictions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (1, 1)), (0, (10, 3)))
MOST = len(COLOURS)
"""How many models are told apart by colour; the others are drawn in grey or left out."""
BANDS = 3
"""More than so many bands hide one another."""
BINS = 10
GRID = np.linspace(0, 1, 201)
INK, PALE = "#333333", "#bbbbbb"
NAME = 32
"""Characters of a name that fit."""


def check_can_draw(purpose: str = "drawing figures") -> None:
    """Say what is missing before anything is computed."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("plots", purpose)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as the suffix says (.png, .svg, .pdf), whole or not at all."""
    with whole_file(path) as partial:
        partial.write_bytes(drawn(figure, Path(path).suffix.lstrip(".").lower()))


def drawn(figure: Figure, kind: str) -> bytes:
    """A figure as the bytes of a file; equal figures give equal bytes."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with (
        rc_context({"svg.fonttype": "none", "svg.hashsalt": "sacmil"}),  # text stays text
        warnings.catch_warnings(),
    ):
        # whoever looks at the SVG has letters that matplotlib's font lacks
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(buffer, format=kind, dpi=200, metadata=dates.get(kind))
    return buffer.getvalue()


# --- ROC -----------------------------------------------------------------------------------------


def draw_roc(predictions: Predictions) -> Figure:
    """Mean curve over folds per model; a band of one standard deviation for a few models.

    Of more than two classes the curve is the mean of those of each class against the rest.
    """
    test = to_units(of_test(predictions))
    ranked = _by_auc(test)
    figure, axes = _square()
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1, zorder=1)
    for name, _ in ranked[MOST:]:
        _draw_curve(axes, fold_curves(_of(test, name)), color="#dddddd", linewidth=1, zorder=2)
    for place, (name, auc) in enumerate(ranked[:MOST]):
        curves = fold_curves(_of(test, name))
        label = f"{_short(name)}  {Style().number(auc)}"
        _draw_curve(axes, curves, label=label, linewidth=2, zorder=9 - place, **_look(place))
        if len(ranked) <= BANDS and len(curves) > 1:
            _draw_band(axes, curves, COLOURS[place])
    if len(ranked) > MOST:
        axes.plot([], [], color="#dddddd", label=f"{len(ranked) - MOST} others")
    kind = "AUC" if len(test.classes) == 2 else "AUC, mean over classes"
    axes.legend(loc="lower right", frameon=False, title=kind, alignment="left")
    positive = f" ({_short(test.classes[1])})" if len(test.classes) == 2 else ""
    _label(axes, "1 − specificity", f"sensitivity{positive}", _roc_title(test, ranked))
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


# --- calibration ---------------------------------------------------------------------------------


class Reliability(NamedTuple):
    """What was promised and what came true, per bin of the promise."""

    promised: Floats
    """(BINS,), mean probability; NaN in an empty bin."""
    observed: Floats
    """(BINS,), share that came true."""
    share: Floats
    """(BINS,), of all predictions."""


def reliability(predictions: Predictions) -> Reliability:
    """Of two classes, how often class 1 is true when promised; of more, the likeliest class."""
    promise, truth = _promises(predictions)
    place = np.minimum((promise * BINS).astype(int), BINS - 1)
    counts = np.bincount(place, minlength=BINS).astype(np.float64)
    with np.errstate(invalid="ignore"):
        promised = np.bincount(place, promise, BINS) / counts
        observed = np.bincount(place, truth, BINS) / counts
    return Reliability(promised, observed, counts / max(len(promise), 1))


def _promises(predictions: Predictions) -> tuple[Floats, Floats]:
    p = predictions.probabilities
    if len(predictions.classes) == 2:
        return p[:, 1], (predictions.label == 1).astype(np.float64)
    return p.max(axis=1), (p.argmax(axis=1) == predictions.label).astype(np.float64)


def draw_calibration(predictions: Predictions) -> Figure:
    """Promised against observed, over a histogram of what is promised.

    A point is as large as its bin is full: small ones mean little.
    """
    test = to_units(of_test(predictions))
    ranked = _by_auc(test)
    figure, (axes, below) = _stacked()
    axes.plot([0, 1], [0, 1], color=PALE, linewidth=1, zorder=1)
    for place, (name, _) in enumerate(ranked[:MOST]):
        found = reliability(_of(test, name))
        full = found.share > 0
        x, y, colour = found.promised[full], found.observed[full], COLOURS[place]
        axes.plot(x, y, label=_short(name), linewidth=1.5, zorder=3, **_look(place))
        axes.scatter(x, y, s=8 + 400 * found.share[full], color=colour, linewidth=0, zorder=4)
        below.stairs(found.share, np.linspace(0, 1, BINS + 1), color=colour, linewidth=1.6)
    axes.legend(loc="upper left", frameon=False)
    two = len(test.classes) == 2
    what = _short(test.classes[1]) if two else "the likeliest class"
    _label(axes, "", "share that came true", f"Calibration{_of_how_many(ranked)}")
    _label(below, f"probability of {what}", "predictions", "")
    below.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    return figure


def _of_how_many(ranked: Sequence[tuple[str, float]]) -> str:
    return f": the {MOST} best of {len(ranked)} models" if len(ranked) > MOST else ""


# --- confusion -----------------------------------------------------------------------------------


def confusion(predictions: Predictions) -> npt.NDArray[np.int64]:
    """(C, C): true class by row, likeliest class by column, over all folds and seeds."""
    size = len(predictions.classes)
    taken = predictions.probabilities.argmax(axis=1)
    return np.bincount(predictions.label * size + taken, minlength=size**2).reshape(size, size)


def draw_confusion(predictions: Predictions) -> Figure:
    """A matrix per model: shares of each true class, and counts over folds and seeds."""
    from matplotlib.figure import Figure

    test = to_units(of_test(predictions))
    everyone = _by_auc(test)
    ranked = everyone[:MOST]
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
        _draw_matrix(axes, confusion(_of(test, name)))
        axes.set_title(_short(name), loc="left", fontsize=11, color=INK)
        names = [_short(text, 14) for text in test.classes]
        axes.set_xticks(range(len(names)), names, rotation=0 if len(names) < 4 else 45)
        axes.set_yticks(range(len(names)), names if number % columns == 0 else [])
    figure.supxlabel(f"taken for{_of_how_many(everyone)}", fontsize=11, color=INK)
    figure.supylabel("true class", fontsize=11, color=INK)
    return figure


def _draw_matrix(axes: Axes, counts: npt.NDArray[np.int64]) -> None:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1.15)
    for (line, column), share in np.ndenumerate(shares):
        text = f"{100 * share:.0f} %\n{counts[line, column]:,}"
        colour = "white" if share > 0.6 else INK
        axes.text(column, line, text, ha="center", va="center", color=colour, fontsize=10)
    axes.tick_params(length=0, labelsize=10, labelcolor=INK)
    axes.spines[:].set_visible(False)


# --- ranks ---------------------------------------------------------------------------------------


def draw_ranks(
    ranks: Mapping[str, float],
    comparisons: Sequence[Comparison],
    *,
    metric: str = "auc",
    level: float = 0.95,
) -> Figure:
    """Mean rank per model, the best on top; a bar joins models that cannot be told apart.

    Args:
        ranks: mean rank over folds by model.
        comparisons: of every pair; where some are missing no bars are drawn.
        metric: what was ranked.
        level: a difference counts when p, after Holm, is below one minus this.
    """
    from matplotlib.figure import Figure

    ordered = sorted(ranks, key=lambda name: (ranks[name], name))
    groups = indistinct(ordered, comparisons, level=level)
    figure = Figure(figsize=(7, 1.3 + 0.34 * len(ordered)), layout="constrained")
    axes = figure.subplots()
    for line, name in enumerate(ordered):
        axes.plot([1, ranks[name]], [line, line], color="#e4e4e4", linewidth=1.5, zorder=1)
        axes.plot(ranks[name], line, "o", color=COLOURS[0], markersize=8, zorder=3)
        text = f"{ranks[name]:.1f}"
        axes.annotate(
            text, (ranks[name], line), (9, 0), textcoords="offset points", va="center", color=INK
        )
    right = max(len(ordered), 2)
    for place, group in enumerate(groups):
        x = right + 0.06 * right * (place + 1.5)
        axes.plot([x, x], [group[0] - 0.25, group[-1] + 0.25], color=INK, linewidth=3.5)
    axes.set_yticks(range(len(ordered)), [_short(name) for name in ordered])
    axes.set_ylim(len(ordered) - 0.5, -0.5)
    axes.set_xlim(0.9, right * (1.06 + 0.06 * (len(groups) + 1)))
    axes.set_xticks(_whole_ticks(right))
    told = ": models joined by a bar cannot be told apart" if groups else ""
    if not groups and _is_complete(ordered, comparisons):
        told = ": every two models can be told apart"
    _label(axes, f"mean rank by {TITLES[metric]} (1 is best)", "", f"Ranks{told}")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def indistinct(
    ordered: Sequence[str], comparisons: Sequence[Comparison], *, level: float = 0.95
) -> list[range]:
    """The longest runs of neighbours in rank among whom no difference can be claimed."""
    if not _is_complete(ordered, comparisons):
        return []  # who was not compared must not look equal
    sure = {frozenset((c.first, c.second)) for c in comparisons if is_claimed(c, level=level)}
    found: list[range] = []
    for start in range(len(ordered)):
        end = start + 1
        while end < len(ordered) and not any(
            frozenset((ordered[end], name)) in sure for name in ordered[start:end]
        ):
            end += 1
        if end - start > 1 and (not found or end > found[-1].stop):
            found.append(range(start, end))
    return found


def _is_complete(ordered: Sequence[str], comparisons: Sequence[Comparison]) -> bool:
    compared = {frozenset((pair.first, pair.second)) for pair in comparisons}
    return len(compared) == len(ordered) * (len(ordered) - 1) // 2


def _whole_ticks(last: int) -> list[int]:
    step = max(1, math.ceil(last / 10))
    return list(range(1, last + 1, step))


# --- what they share -----------------------------------------------------------------------------


def _of(predictions: Predictions, model: str) -> Predictions:
    return predictions.where(predictions.model == model)


def _by_auc(test: Predictions) -> list[tuple[str, float]]:
    """Models and their fold-mean AUC, the best first: so a model has one colour everywhere."""
    found = [(str(name), _fold_auc(_of(test, name))) for name in np.unique(test.model)]
    return sorted(found, key=lambda pair: (-np.nan_to_num(pair[1], nan=-1.0), pair[0]))


def _fold_auc(part: Predictions) -> float:
    folds = []
    for fold in np.unique(part.fold):
        seeds = [(part.fold == fold) & (part.seed == seed) for seed in np.unique(part.seed)]
        values = [
            METRICS["auc"](part.label[rows], part.probabilities[rows])
            for rows in seeds
            if rows.any()
        ]
        folds.append(np.mean(values))
    return float(np.mean(folds)) if folds else math.nan


def _short(name: str, most: int = NAME) -> str:
    """A name that fits and that matplotlib does not take for mathematics."""
    plain = printable(str(name))
    cut = plain if len(plain) <= most else plain[: most - 1] + "…"
    # an underscore in front would hide a line from the legend
    return (" " + cut if cut.startswith("_") else cut or NOTHING).replace("$", r"\$")


def _look(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place], "linestyle": DASHES[place]}


def _square() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    axes.set_aspect("equal")
    _unit(axes)
    return figure, axes


def _stacked() -> tuple[Figure, tuple[Axes, Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 7), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=[4, 1])
    _unit(above)
    return figure, (above, below)


def _unit(axes: Axes) -> None:
    axes.set_xlim(-0.01, 1.01)
    axes.set_ylim(-0.01, 1.01)
    axes.grid(color="#f0f0f0")


def _label(axes: Axes, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x, fontsize=11, color=INK)
    axes.set_ylabel(y, fontsize=11, color=INK)
    axes.set_title(title, loc="left", fontsize=12, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)
    axes.tick_params(color=PALE, labelcolor=INK, labelsize=10)
    axes.set_axisbelow(True)
