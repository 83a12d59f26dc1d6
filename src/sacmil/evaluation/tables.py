"""Figures as tables: which rows and columns there are, and what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sacmil.evaluation.comparison import Comparison
from sacmil.evaluation.layouts import Cell, Table
from sacmil.evaluation.localisation_summary import LocalisationSummary
from sacmil.evaluation.metrics import LOCALISATION_TITLES, LOWER_IS_BETTER, TITLES
from sacmil.evaluation.summary import Figure
from sacmil.evaluation.units import units_of
from sacmil.results import Predictions

Spread = Literal["both", "std", "interval", "none"]
NOTHING = "–"
"""What stands for a figure that is not defined."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """How figures are printed."""

    percent: bool = False
    """One decimal of a percentage, as in the paper, instead of three of a fraction."""
    spread: Spread = "both"
    """What stands beside a mean: standard deviation over folds, interval, both or none."""

    def number(self, value: float, sign: str = "") -> str:
        """A figure, rounded; never minus zero."""
        if not math.isfinite(value):
            return NOTHING
        shown = round(100 * value, 1) if self.percent else round(value, 3)
        return f"{shown + 0.0:{sign}.{1 if self.percent else 3}f}"

    def interval(self, low: float, high: float, sign: str = "") -> str:
        """Both ends, in brackets."""
        return f"[{self.number(low, sign)}, {self.number(high, sign)}]"

    def figure(self, figure: Figure) -> str:
        """A mean with what was chosen to stand beside it, as far as it is defined."""
        text = self.number(figure.mean)
        if text == NOTHING:
            return text
        if self.spread in ("both", "std") and math.isfinite(figure.std):
            text += f" ± {self.number(figure.std)}"
        if _allows_interval(self) and math.isfinite(figure.low + figure.high):
            text += f" {self.interval(figure.low, figure.high)}"
        return text


def summary_table(
    figures: Mapping[str, Mapping[str, Figure]], *, caption: str = "", style: Style | None = None
) -> Table:
    """A line per model, a column per metric, the best of each column marked.

    Args:
        figures: by model and metric, as summarise gives them.
        caption: see caption().
        style: how figures are printed.
    """
    style = style or Style()
    metrics = list(dict.fromkeys(metric for row in figures.values() for metric in row))
    best = {metric: _best(metric, figures, style) for metric in metrics}
    rows = [
        (Cell(model), *(Cell(style.figure(row[m]), best=model in best[m]) for m in metrics))
        for model, row in figures.items()
    ]
    records = [
        {"model": model, "metric": metric, **_plain(figure)}
        for model, row in figures.items()
        for metric, figure in row.items()
    ]
    header = ("model", *(TITLES[metric] for metric in metrics))
    return Table(caption, header, tuple(rows), tuple(records))


def fold_table(
    figures: Mapping[str, Mapping[str, Figure]],
    metric: str,
    predictions: Predictions,
    *,
    style: Style | None = None,
) -> Table:
    """A line per model, a column per fold of the predictions, of one metric."""
    style = style or Style()
    test = of_test(predictions)
    values = {
        model: dict(zip(_folds(test, model), row[metric].values, strict=True))
        for model, row in figures.items()
    }
    folds = sorted({fold for found in values.values() for fold in found})
    rows = [
        (Cell(model), *(Cell(style.number(found.get(fold, math.nan))) for fold in folds))
        for model, found in values.items()
    ]
    records = [
        {"model": model, "metric": metric, "fold": fold, "value": value}
        for model, found in values.items()
        for fold, value in found.items()
    ]
    header = ("model", *(f"fold {fold}" for fold in folds))
    return Table("", header, tuple(rows), tuple(records))


def _folds(test: Predictions, model: str) -> list[int]:
    return [int(fold) for fold in np.unique(test.fold[test.model == model])]


def comparison_table(
    comparisons: Sequence[Comparison], *, caption: str = "", style: Style | None = None
) -> Table:
    """A line per pair of models: the difference, and every test that applies to it."""
    style = style or Style()
    tests = {name: title for name, title in _TESTS.items() if _applies(name, comparisons)}
    rows = []
    for pair in comparisons:
        difference = style.number(pair.difference, "+")
        if math.isfinite(pair.low + pair.high):
            difference += f" {style.interval(pair.low, pair.high, '+')}"
        told = (Cell(p_value(getattr(pair, name))) for name in tests)
        rows.append((Cell(pair.first), Cell(pair.second), Cell(difference), *told))
    names = ("first", "second", "metric", "difference", "low", "high", *_TESTS, "patients")
    records = [{name: getattr(pair, name) for name in names} for pair in comparisons]
    title = TITLES[comparisons[0].metric] if comparisons else "difference"
    header = ("first", "second", f"{title}: first − second", *tests.values())
    return Table(caption, header, tuple(rows), tuple(records))


def localisation_table(
    found: Mapping[str, LocalisationSummary],
    *,
    folds: int | None = None,
    level: float = 0.95,
    draws: int = 2000,
    style: Style | None = None,
) -> Table:
    """A line per model: how well its scores find the labelled instances of test slides.

    Args:
        found: by model, as summarise_localisation gives it.
        folds: that the models were tested on; if left out, those with labelled slides.
        level: of the intervals.
        draws: of the bootstrap.
        style: how figures are printed.
    """
    style = style or Style()
    figures = {model: summary.figures for model, summary in found.items()}
    best = {metric: _best(metric, figures, style) for metric in LOCALISATION_TITLES}
    rows = [
        (
            Cell(model),
            *(Cell(style.figure(one.figures[m]), best=model in best[m]) for m in best),
            *(Cell(text) for text in (style.number(one.chance), f"{one.patients:,}")),
            Cell(f"{one.slides:,}"),
        )
        for model, one in found.items()
    ]
    records = [
        {"model": model, "metric": metric, **_plain(figure), **_counts(found[model], metric)}
        for model, row in figures.items()
        for metric, figure in row.items()
    ]
    header = ("model", *LOCALISATION_TITLES.values(), "AP by chance", "patients", "slides")
    labelled = max((summary.folds for summary in found.values()), default=0)
    is_out_of_fold = (labelled if folds is None else folds) > 1
    where = "out of fold" if is_out_of_fold else "on test slides"
    caption = _localisation_caption(where, found, level, draws, style)
    return Table(caption, header, tuple(rows), tuple(records))


def _counts(summary: LocalisationSummary, metric: str) -> dict[str, object]:
    chance = 0.5 if metric == "localisation_auc" else summary.chance
    return {"chance": chance, "patients": summary.patients, "slides": summary.slides}


def _localisation_caption(
    where: str, found: Mapping[str, LocalisationSummary], level: float, draws: int, style: Style
) -> str:
    shows = has_intervals({model: one.figures for model, one in found.items()}, style)
    interval = f" {_interval_note(level, draws)}" if shows else ""
    return (
        f"Localisation ({where}): instance scores against instance labels, within each slide that "
        f"has positive and negative instances; mean over patients{interval}. By chance AUC is "
        f"{style.number(0.5)}; average precision is the share of positive instances."
    )


_TESTS = {
    "p_permutation": "p (permutation)",
    "p_holm": "p (Holm)",
    "p_t": "p (corrected t)",
    "p_delong": "p (DeLong)",
}


def _applies(test: str, comparisons: Sequence[Comparison]) -> bool:
    return any(getattr(pair, test) is not None for pair in comparisons)


def p_value(p: float | None) -> str:
    """A probability to three decimals; small ones are only told to be small."""
    if p is None or not math.isfinite(p):
        return NOTHING
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def caption(
    predictions: Predictions,
    *,
    data: str = "",
    level: float = 0.95,
    draws: int = 2000,
    style: Style | None = None,
    with_intervals: bool = True,
) -> str:
    """What a reader must know of the figures: unit, folds, seeds, patients, interval, data.

    Args:
        predictions: what the figures were made of; only the test part counts.
        data: where they come from.
        level: of the intervals.
        draws: of the bootstrap.
        style: how figures are printed.
        with_intervals: whether any figure has an interval; see has_intervals().
    """
    style = style or Style()
    test = of_test(predictions)
    interval = _interval_note(level, draws) if with_intervals and _allows_interval(style) else ""
    parts = [_counted(test), _repeated(test), _beside(test, style, interval)]
    if style.percent:
        parts.append("in percent")
    if data:
        parts.append(f"data: {data}")
    return "; ".join(part for part in parts if part) + "."


def _counted(test: Predictions) -> str:
    """What was counted; where models differ in it, of which models."""
    told: dict[str, list[str]] = {}
    for model, unit in units_of(test).items():
        rows = test.where(test.model == model)
        told.setdefault(_counted_of(rows, unit), []).append(model)
    if len(told) < 2:
        return f"Unit: {next(iter(told), 'none')}"
    return "Unit: " + "; ".join(f"{text} for {', '.join(of)}" for text, of in told.items())


def _counted_of(rows: Predictions, unit: str) -> str:
    patients, slides = len(np.unique(rows.patient_id)), len(np.unique(rows.slide_id))
    if unit == "patient":
        return f"the patient ({count(patients, 'patient')}, {count(slides, 'slide')})"
    return f"the slide ({count(slides, 'slide')} of {count(patients, 'patient')})"


def _repeated(test: Predictions) -> str:
    return f"{_of_each(test, test.fold, 'fold')}, {_of_each(test, test.seed, 'seed')}"


def _of_each(test: Predictions, values: npt.NDArray[np.int64], word: str) -> str:
    """How many a model has; runs side by side need not have as many."""
    found = {len(np.unique(values[test.model == model])) for model in np.unique(test.model)}
    few, many = min(found, default=0), max(found, default=0)
    return count(many, word) if few == many else f"{few} to {count(many, word)}"


def _beside(test: Predictions, style: Style, interval: str) -> str:
    text = "mean"
    if style.spread in ("both", "std") and len(np.unique(test.fold)) > 1:
        text += " ± standard deviation over folds"
    return f"{text} {interval}" if interval else text


def has_intervals(figures: Mapping[str, Mapping[str, Figure]], style: Style) -> bool:
    """Whether any figure is printed with its interval; too few patients give none."""
    every = [figure for row in figures.values() for figure in row.values()]
    return _allows_interval(style) and any(
        math.isfinite(one.mean + one.low + one.high) for one in every
    )


def _allows_interval(style: Style) -> bool:
    return style.spread in ("both", "interval")


def _interval_note(level: float, draws: int) -> str:
    return f"[{100 * level:g} % interval: patients resampled, {draws:,} draws]"


def of_test(predictions: Predictions) -> Predictions:
    """The rows that figures are made of."""
    return predictions.where(predictions.split == "test")


def count(number: int, noun: str) -> str:
    """A number and its noun.

    >>> count(1, "fold"), count(1200, "slide")
    ('1 fold', '1,200 slides')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _plain(figure: Figure) -> dict[str, object]:
    return {name: float(getattr(figure, name)) for name in ("mean", "std", "low", "high")}


def _best(metric: str, figures: Mapping[str, Mapping[str, Figure]], style: Style) -> frozenset[str]:
    """Who prints the best mean; among one model nobody is best."""
    means = {name: row[metric].mean for name, row in figures.items() if metric in row}
    defined = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    if len(means) < 2 or not defined:
        return frozenset()
    top = (min if metric in LOWER_IS_BETTER else max)(defined.values())
    # to a reader two means are equal when they are printed alike
    return frozenset(n for n, mean in defined.items() if style.number(mean) == style.number(top))
