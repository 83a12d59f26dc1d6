"""Tables of metrics, comparisons and localisation, with captions."""

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
"""Text of an undefined value."""


@dataclass(frozen=True, kw_only=True)
class TableStyle:
    """Number format of tables."""

    percent: bool = False
    """Percentages with one decimal, as in the paper, instead of fractions with three."""
    spread: Spread = "both"
    """Printed with a mean: standard deviation over folds, interval, both or none."""

    def format_number(self, value: float, sign: str = "") -> str:
        """Return a rounded number, never minus zero."""
        if not math.isfinite(value):
            return UNDEFINED
        shown = round(100 * value, 1) if self.percent else round(value, 3)
        return f"{shown + 0.0:{sign}.{1 if self.percent else 3}f}"

    def format_interval(self, low: float, high: float, sign: str = "") -> str:
        """Return both ends in brackets."""
        return f"[{self.format_number(low, sign)}, {self.format_number(high, sign)}]"

    def format_estimate(self, estimate: MetricEstimate) -> str:
        """Return a mean with its standard deviation and interval, as chosen and if defined."""
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
    """Return a table with a row per model and a column per metric; the best values are marked.

    Args:
        estimates: by model and metric, from summarize.
        caption: see make_caption.
        style: number format.
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
        {"model": model, "metric": metric, **_to_record(estimate)}
        for model, row in estimates.items()
        for metric, estimate in row.items()
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
    """Return a table of one metric with a row per model and a column per fold."""
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
    """Return a table with a row per pair: the difference and every test that applies."""
    style = style or TableStyle()
    tests = {name: title for name, title in _TESTS.items() if _has_test(name, comparisons)}
    rows = []
    for pair in comparisons:
        difference = style.format_number(pair.difference, "+")
        if math.isfinite(pair.low + pair.high):
            difference += f" {style.format_interval(pair.low, pair.high, '+')}"
        p_values = (Cell(format_p_value(getattr(pair, name))) for name in tests)
        rows.append((Cell(pair.first), Cell(pair.second), Cell(difference), *p_values))
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
    """Return a table of localisation on test slides with a row per model.

    Args:
        summaries: by model, from summarize_localization.
        folds: number of folds tested; if omitted, those with labelled slides.
        level: confidence level of the intervals.
        draws: number of resamples.
        style: number format.
    """
    style = style or TableStyle()
    estimates = {model: summary.estimates for model, summary in summaries.items()}
    best = {metric: _find_best(metric, estimates, style) for metric in LOCALIZATION_TITLES}
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
            **_to_record(estimate),
            **_count_columns(summaries[model], metric),
        }
        for model, row in estimates.items()
        for metric, estimate in row.items()
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
    with_intervals = has_intervals(
        {model: one.estimates for model, one in summaries.items()}, style
    )
    interval = f" {_describe_interval(level, draws)}" if with_intervals else ""
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
    """Format a p value with three decimals, or as <0.001."""
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
    """Return the caption of a table: unit, folds, seeds, patients, interval and data.

    Args:
        predictions: of which test rows count.
        data: source of the predictions.
        level: confidence level of the intervals.
        draws: number of resamples.
        style: number format.
        with_intervals: whether any estimate has an interval; see has_intervals.
    """
    style = style or TableStyle()
    test = select_test_rows(predictions)
    interval = (
        _describe_interval(level, draws) if with_intervals and _can_show_interval(style) else ""
    )
    phrases = [
        _describe_units(test),
        _describe_repeats(test),
        _describe_spread(test, style, interval),
    ]
    if style.percent:
        phrases.append("in percent")
    if data:
        phrases.append(f"data: {data}")
    return "; ".join(filter(None, phrases)) + "."


def _describe_units(test: Predictions) -> str:
    """Describe the unit and its count, by model if models differ."""
    models_by_text: dict[str, list[str]] = {}
    for model, unit in find_unit_by_model(test).items():
        rows = test.select(test.model == model)
        models_by_text.setdefault(_describe_unit_counts(rows, unit), []).append(model)
    if len(models_by_text) < 2:
        return f"Unit: {next(iter(models_by_text), 'none')}"
    return "Unit: " + "; ".join(
        f"{text} for {', '.join(models)}" for text, models in models_by_text.items()
    )


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
    """Describe how many values a model has, as a range if models differ."""
    found = {len(np.unique(values[test.model == model])) for model in np.unique(test.model)}
    few, many = min(found, default=0), max(found, default=0)
    return format_count(many, word) if few == many else f"{few} to {format_count(many, word)}"


def _describe_spread(test: Predictions, style: TableStyle, interval: str) -> str:
    text = "mean"
    if style.spread in ("both", "std") and len(np.unique(test.fold)) > 1:
        text += " ± standard deviation over folds"
    return f"{text} {interval}" if interval else text


def has_intervals(estimates: Mapping[str, Mapping[str, MetricEstimate]], style: TableStyle) -> bool:
    """Whether any estimate is printed with an interval; too few patients give none."""
    every = [estimate for row in estimates.values() for estimate in row.values()]
    return _can_show_interval(style) and any(
        math.isfinite(one.mean + one.low + one.high) for one in every
    )


def _can_show_interval(style: TableStyle) -> bool:
    return style.spread in ("both", "interval")


def _describe_interval(level: float, draws: int) -> str:
    return f"[{100 * level:g} % interval: patients resampled, {draws:,} draws]"


def select_test_rows(predictions: Predictions) -> Predictions:
    """Return the rows of test sets."""
    return predictions.select(predictions.split == "test")


def format_count(number: int, noun: str) -> str:
    """Return a number and its noun.

    >>> format_count(1, "fold"), format_count(1200, "slide")
    ('1 fold', '1,200 slides')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _to_record(estimate: MetricEstimate) -> dict[str, object]:
    return {name: float(getattr(estimate, name)) for name in ("mean", "std", "low", "high")}


def _find_best(
    metric: str, estimates: Mapping[str, Mapping[str, MetricEstimate]], style: TableStyle
) -> frozenset[str]:
    """Return the models with the best printed mean; none if there is one model only."""
    means = {name: row[metric].mean for name, row in estimates.items() if metric in row}
    defined = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    if len(means) < 2 or not defined:
        return frozenset()
    top = (min if metric in LOWER_IS_BETTER else max)(defined.values())
    # means that are printed alike are ties to a reader
    return frozenset(
        n for n, mean in defined.items() if style.format_number(mean) == style.format_number(top)
    )
