"""Figures as tables: which rows and columns there are, and what they say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sacmil.evaluation.comparison import PairComparison
from sacmil.evaluation.localization_summary import LocalizationSummary
from sacmil.evaluation.metrics import LOCALIZATION_TITLES, LOWER_IS_BETTER, METRIC_TITLES
from sacmil.evaluation.patient_level import find_unit_by_model
from sacmil.evaluation.summary import MetricEstimate
from sacmil.evaluation.table_format import Cell, ResultTable
from sacmil.results import Predictions

Spread = Literal["both", "std", "interval", "none"]
UNDEFINED = "–"
"""What stands for a figure that is not defined."""


@dataclass(frozen=True, kw_only=True)
class TableStyle:
    """How figures are printed."""

    percent: bool = False
    """One decimal of a percentage, as in the paper, instead of three of a fraction."""
    spread: Spread = "both"
    """What stands beside a mean: standard deviation over folds, interval, both or none."""

    def format_number(self, value: float, sign: str = "") -> str:
        """A figure, rounded; never minus zero."""
        if not math.isfinite(value):
            return UNDEFINED
        shown = round(100 * value, 1) if self.percent else round(value, 3)
        return f"{shown + 0.0:{sign}.{1 if self.percent else 3}f}"

    def format_interval(self, low: float, high: float, sign: str = "") -> str:
        """Both ends, in brackets."""
        return f"[{self.format_number(low, sign)}, {self.format_number(high, sign)}]"

    def format_estimate(self, estimate: MetricEstimate) -> str:
        """A mean with what was chosen to stand beside it, as far as it is defined."""
        text = self.format_number(estimate.mean)
        if text == UNDEFINED:
            return text
        if self.spread in ("both", "std") and math.isfinite(estimate.std):
            text += f" ± {self.format_number(estimate.std)}"
        if _can_show_interval(self) and math.isfinite(estimate.low + estimate.high):
            text += f" {self.format_interval(estimate.low, estimate.high)}"
        return text


def summary_table(
    estimates: Mapping[str, Mapping[str, MetricEstimate]],
    *,
    caption: str = "",
    style: TableStyle | None = None,
) -> ResultTable:
    """A line per model, a column per metric, the best of each column marked.

    Args:
        estimates: by model and metric, as summarise gives them.
        caption: see caption().
        style: how figures are printed.
    """
    style = style or TableStyle()
    metrics = list(dict.fromkeys(metric for row in estimates.values() for metric in row))
    best = {metric: _find_best(metric, estimates, style) for metric in metrics}
    rows = [
        (
            Cell(model),
            *(Cell(style.format_estimate(row[m]), best=model in best[m]) for m in metrics),
        )
        for model, row in estimates.items()
    ]
    records = [
        {"model": model, "metric": metric, **_to_record(figure)}
        for model, row in estimates.items()
        for metric, figure in row.items()
    ]
    header = ("model", *(METRIC_TITLES[metric] for metric in metrics))
    return ResultTable(caption, header, tuple(rows), tuple(records))


def fold_table(
    estimates: Mapping[str, Mapping[str, MetricEstimate]],
    metric: str,
    predictions: Predictions,
    *,
    style: TableStyle | None = None,
) -> ResultTable:
    """A line per model, a column per fold of the predictions, of one metric."""
    style = style or TableStyle()
    test = select_test_rows(predictions)
    values = {
        model: dict(zip(_list_folds(test, model), row[metric].values, strict=True))
        for model, row in estimates.items()
    }
    folds = sorted({fold for found in values.values() for fold in found})
    rows = [
        (Cell(model), *(Cell(style.format_number(found.get(fold, math.nan))) for fold in folds))
        for model, found in values.items()
    ]
    records = [
        {"model": model, "metric": metric, "fold": fold, "value": value}
        for model, found in values.items()
        for fold, value in found.items()
    ]
    header = ("model", *(f"fold {fold}" for fold in folds))
    return ResultTable("", header, tuple(rows), tuple(records))


def _list_folds(test: Predictions, model: str) -> list[int]:
    return [int(fold) for fold in np.unique(test.fold[test.model == model])]


def comparison_table(
    comparisons: Sequence[PairComparison], *, caption: str = "", style: TableStyle | None = None
) -> ResultTable:
    """A line per pair of models: the difference, and every test that applies to it."""
    style = style or TableStyle()
    tests = {name: title for name, title in _TESTS.items() if _has_test(name, comparisons)}
    rows = []
    for pair in comparisons:
        difference = style.format_number(pair.difference, "+")
        if math.isfinite(pair.low + pair.high):
            difference += f" {style.format_interval(pair.low, pair.high, '+')}"
        told = (Cell(format_p_value(getattr(pair, name))) for name in tests)
        rows.append((Cell(pair.first), Cell(pair.second), Cell(difference), *told))
    names = ("first", "second", "metric", "difference", "low", "high", *_TESTS, "patients")
    records = [{name: getattr(pair, name) for name in names} for pair in comparisons]
    title = METRIC_TITLES[comparisons[0].metric] if comparisons else "difference"
    header = ("first", "second", f"{title}: first − second", *tests.values())
    return ResultTable(caption, header, tuple(rows), tuple(records))


def localization_table(
    summaries: Mapping[str, LocalizationSummary],
    *,
    folds: int | None = None,
    level: float = 0.95,
    draws: int = 2000,
    style: TableStyle | None = None,
) -> ResultTable:
    """A line per model: how well its scores find the labelled instances of test slides.

    Args:
        summaries: by model, as summarise_localisation gives it.
        folds: that the models were tested on; if left out, those with labelled slides.
        level: of the intervals.
        draws: of the bootstrap.
        style: how figures are printed.
    """
    style = style or TableStyle()
    figures = {model: summary.estimates for model, summary in summaries.items()}
    best = {metric: _find_best(metric, figures, style) for metric in LOCALIZATION_TITLES}
    rows = [
        (
            Cell(model),
            *(Cell(style.format_estimate(one.estimates[m]), best=model in best[m]) for m in best),
            *(Cell(text) for text in (style.format_number(one.chance), f"{one.patients:,}")),
            Cell(f"{one.slides:,}"),
        )
        for model, one in summaries.items()
    ]
    records = [
        {
            "model": model,
            "metric": metric,
            **_to_record(figure),
            **_count_columns(summaries[model], metric),
        }
        for model, row in figures.items()
        for metric, figure in row.items()
    ]
    header = ("model", *LOCALIZATION_TITLES.values(), "AP by chance", "patients", "slides")
    labelled = max((summary.folds for summary in summaries.values()), default=0)
    is_out_of_fold = (labelled if folds is None else folds) > 1
    where = "out of fold" if is_out_of_fold else "on test slides"
    caption = _localization_caption(where, summaries, level, draws, style)
    return ResultTable(caption, header, tuple(rows), tuple(records))


def _count_columns(summary: LocalizationSummary, metric: str) -> dict[str, object]:
    chance = 0.5 if metric == "localisation_auc" else summary.chance
    return {"chance": chance, "patients": summary.patients, "slides": summary.slides}


def _localization_caption(
    where: str,
    summaries: Mapping[str, LocalizationSummary],
    level: float,
    draws: int,
    style: TableStyle,
) -> str:
    shows = has_intervals({model: one.estimates for model, one in summaries.items()}, style)
    interval = f" {_describe_interval(level, draws)}" if shows else ""
    return (
        f"Localisation ({where}): instance scores against instance labels, within each slide that "
        f"has positive and negative instances; mean over patients{interval}. By chance AUC is "
        f"{style.format_number(0.5)}; average precision is the share of positive instances."
    )


_TESTS = {
    "p_permutation": "p (permutation)",
    "p_holm": "p (Holm)",
    "p_t": "p (corrected t)",
    "p_delong": "p (DeLong)",
}


def _has_test(test: str, comparisons: Sequence[PairComparison]) -> bool:
    return any(getattr(pair, test) is not None for pair in comparisons)


def format_p_value(p: float | None) -> str:
    """A probability to three decimals; small ones are only told to be small."""
    if p is None or not math.isfinite(p):
        return UNDEFINED
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def make_caption(
    predictions: Predictions,
    *,
    data: str = "",
    level: float = 0.95,
    draws: int = 2000,
    style: TableStyle | None = None,
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
    style = style or TableStyle()
    test = select_test_rows(predictions)
    interval = (
        _describe_interval(level, draws) if with_intervals and _can_show_interval(style) else ""
    )
    parts = [
        _describe_units(test),
        _describe_repeats(test),
        _describe_spread(test, style, interval),
    ]
    if style.percent:
        parts.append("in percent")
    if data:
        parts.append(f"data: {data}")
    return "; ".join(part for part in parts if part) + "."


def _describe_units(test: Predictions) -> str:
    """What was counted; where models differ in it, of which models."""
    told: dict[str, list[str]] = {}
    for model, unit in find_unit_by_model(test).items():
        rows = test.select(test.model == model)
        told.setdefault(_describe_unit_counts(rows, unit), []).append(model)
    if len(told) < 2:
        return f"Unit: {next(iter(told), 'none')}"
    return "Unit: " + "; ".join(f"{text} for {', '.join(of)}" for text, of in told.items())


def _describe_unit_counts(rows: Predictions, unit: str) -> str:
    patients, slides = len(np.unique(rows.patient_id)), len(np.unique(rows.slide_id))
    if unit == "patient":
        return f"the patient ({format_count(patients, 'patient')}, {format_count(slides, 'slide')})"
    return f"the slide ({format_count(slides, 'slide')} of {format_count(patients, 'patient')})"


def _describe_repeats(test: Predictions) -> str:
    return (
        f"{_describe_count_range(test, test.fold, 'fold')}, "
        f"{_describe_count_range(test, test.seed, 'seed')}"
    )


def _describe_count_range(test: Predictions, values: npt.NDArray[np.int64], word: str) -> str:
    """How many a model has; runs side by side need not have as many."""
    found = {len(np.unique(values[test.model == model])) for model in np.unique(test.model)}
    few, many = min(found, default=0), max(found, default=0)
    return format_count(many, word) if few == many else f"{few} to {format_count(many, word)}"


def _describe_spread(test: Predictions, style: TableStyle, interval: str) -> str:
    text = "mean"
    if style.spread in ("both", "std") and len(np.unique(test.fold)) > 1:
        text += " ± standard deviation over folds"
    return f"{text} {interval}" if interval else text


def has_intervals(estimates: Mapping[str, Mapping[str, MetricEstimate]], style: TableStyle) -> bool:
    """Whether any figure is printed with its interval; too few patients give none."""
    every = [figure for row in estimates.values() for figure in row.values()]
    return _can_show_interval(style) and any(
        math.isfinite(one.mean + one.low + one.high) for one in every
    )


def _can_show_interval(style: TableStyle) -> bool:
    return style.spread in ("both", "interval")


def _describe_interval(level: float, draws: int) -> str:
    return f"[{100 * level:g} % interval: patients resampled, {draws:,} draws]"


def select_test_rows(predictions: Predictions) -> Predictions:
    """The rows that figures are made of."""
    return predictions.select(predictions.split == "test")


def format_count(number: int, noun: str) -> str:
    """A number and its noun.

    >>> format_count(1, "fold"), format_count(1200, "slide")
    ('1 fold', '1,200 slides')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _to_record(estimate: MetricEstimate) -> dict[str, object]:
    return {name: float(getattr(estimate, name)) for name in ("mean", "std", "low", "high")}


def _find_best(
    metric: str, estimates: Mapping[str, Mapping[str, MetricEstimate]], style: TableStyle
) -> frozenset[str]:
    """Who prints the best mean; among one model nobody is best."""
    means = {name: row[metric].mean for name, row in estimates.items() if metric in row}
    defined = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    if len(means) < 2 or not defined:
        return frozenset()
    top = (min if metric in LOWER_IS_BETTER else max)(defined.values())
    # to a reader two means are equal when they are printed alike
    return frozenset(
        n for n, mean in defined.items() if style.format_number(mean) == style.format_number(top)
    )
