"""Tables of metrics, comparisons, localisation and misclassified units, with captions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sacmil.errors import format_count
from sacmil.evaluation.comparison import PairComparison
from sacmil.evaluation.fold_results import (
    average_by_patient,
    find_unit,
    find_unit_by_model,
    group_rows,
    select_test_rows,
)
from sacmil.evaluation.localization import LOCALIZATION_TITLES, LocalizationSummary
from sacmil.evaluation.summary import MetricEstimate, summarize
from sacmil.evaluation.table_format import (
    DEFAULT_STYLE,
    Cell,
    ResultTable,
    TableStyle,
    format_p_value,
)
from sacmil.results import Predictions
from sacmil.tasks import from_card

Estimates = Mapping[str, Mapping[str, MetricEstimate]]
"""By model and metric, from summarize."""

_ROUNDING = 1e-6
"""Of predictions in float32; differences below it are none."""
_NUMBERS = ("mean", "std", "low", "high")
_TESTS = {
    "p_permutation": "p (permutation)",
    "p_holm": "p (Holm)",
    "p_t": "p (corrected t)",
    "p_delong": "p (DeLong)",
}


# --- metrics -------------------------------------------------------------------------------------


def summary_table(
    estimates: Estimates, *, caption: str = "", style: TableStyle = DEFAULT_STYLE
) -> ResultTable:
    """Return a table with a row per model and a column per metric; the best values are marked.

    Args:
        estimates: by model and metric, from summarize.
        caption: see make_caption.
        style: number format.
    """
    metrics = list(dict.fromkeys(metric for row in estimates.values() for metric in row))
    best = {metric: _find_best(metric, estimates, style) for metric in metrics}
    rows, records = [], []
    for model, row in estimates.items():
        cells = [Cell(style.format_estimate(row[m]), best=model in best[m]) for m in metrics]
        rows.append((Cell(model), *cells))
        for m, one in row.items():
            numbers = {name: float(getattr(one, name)) for name in _NUMBERS}
            records.append({"model": model, "metric": m, **numbers})
    titles = {name: one.title for row in estimates.values() for name, one in row.items()}
    header = ("model", *(titles[metric] or metric for metric in metrics))
    return ResultTable(caption, header, tuple(rows), tuple(records))


def _find_best(metric: str, estimates: Estimates, style: TableStyle) -> list[str]:
    """Return the models with the best printed mean; none if all are alike."""
    found = {name: row[metric] for name, row in estimates.items() if metric in row}
    means = {name: one.mean for name, one in found.items()}
    lower_is_better = any(one.lower_is_better for one in found.values())
    defined = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    if len(means) < 2 or not defined:
        return []
    top = (min if lower_is_better else max)(defined.values())
    style = style.suited_to(next(iter(found.values())))
    shown = style.format_number(top)  # means that are printed alike are ties to a reader
    best = [name for name, mean in defined.items() if style.format_number(mean) == shown]
    return best if len(best) < len(means) else []


def fold_table(
    estimates: Estimates,
    metric: str,
    predictions: Predictions,
    *,
    style: TableStyle = DEFAULT_STYLE,
) -> ResultTable:
    """Return a table of one metric with a row per model and a column per fold."""
    test = select_test_rows(predictions)
    values = {
        model: dict(
            zip(np.unique(test.fold[test.model == model]).tolist(), row[metric].values, strict=True)
        )
        for model, row in estimates.items()
    }
    folds = sorted({fold for found in values.values() for fold in found})
    style = style.suited_to(next(iter(estimates.values()))[metric]) if estimates else style
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


# --- comparisons ---------------------------------------------------------------------------------


def comparison_table(
    comparisons: Sequence[PairComparison], *, caption: str = "", style: TableStyle = DEFAULT_STYLE
) -> ResultTable:
    """Return a table with a row per pair: the difference and every test that applies."""
    tests = {
        name: title
        for name, title in _TESTS.items()
        if any(getattr(pair, name) is not None for pair in comparisons)
    }
    rows = []
    for pair in comparisons:
        suited = style.suited_to(pair).aligned_to(pair.difference, pair.low, pair.high)
        difference = suited.format_number(pair.difference, "+")
        difference += suited.format_interval(pair.low, pair.high, "+")
        p_values = (format_p_value(getattr(pair, name)) for name in tests)
        rows.append(tuple(map(Cell, (pair.first, pair.second, difference, *p_values))))
    names = ("first", "second", "metric", "difference", "low", "high", *_TESTS, "patients")
    records = [{name: getattr(pair, name) for name in names} for pair in comparisons]
    first = comparisons[0] if comparisons else None
    title = first.title if first else "difference"
    header = ("first", "second", f"{title}: first − second", *tests.values())
    return ResultTable(caption, header, tuple(rows), tuple(records))


# --- localisation --------------------------------------------------------------------------------


def localization_table(
    summaries: Mapping[str, LocalizationSummary],
    *,
    folds: int | None = None,
    level: float = 0.95,
    draws: int = 2000,
    style: TableStyle = DEFAULT_STYLE,
) -> ResultTable:
    """Return a table of localisation on test slides with a row per model.

    Args:
        summaries: by model, from summarize_localization.
        folds: number of folds tested; if omitted, those with labelled slides.
        level: confidence level of the intervals.
        draws: number of resamples.
        style: number format.
    """
    estimates = {model: summary.estimates for model, summary in summaries.items()}
    metrics = summary_table(estimates, style=style)
    rows = [
        (*row, *map(Cell, (style.format_number(s.chance), f"{s.patients:,}", f"{s.slides:,}")))
        for row, s in zip(metrics.rows, summaries.values(), strict=True)
    ]
    records = [
        {**record, **_count_columns(summaries[str(record["model"])], str(record["metric"]))}
        for record in metrics.records
    ]
    header = ("model", *LOCALIZATION_TITLES.values(), "AP by chance", "patients", "slides")
    if folds is None:
        folds = max((summary.folds for summary in summaries.values()), default=0)
    where = "out of fold" if folds > 1 else "on test slides"
    interval = f" {describe_interval(level, draws)}" if has_intervals(estimates, style) else ""
    caption = (
        f"Localisation ({where}): instance scores against instance labels, within each slide that "
        f"has positive and negative instances; mean over patients{interval}. By chance AUC is "
        f"{style.format_number(0.5)}; average precision is the share of positive instances."
    )
    return ResultTable(caption, header, tuple(rows), tuple(records))


def _count_columns(summary: LocalizationSummary, metric: str) -> dict[str, object]:
    chance = 0.5 if metric == "localisation_auc" else summary.chance
    return {"chance": chance, "patients": summary.patients, "slides": summary.slides}


# --- one row per label ---------------------------------------------------------------------------


def breakdown_table(
    predictions: Predictions, *, level: float, draws: int, seed: int, style: TableStyle
) -> ResultTable | None:
    """Return a table with a row per label and model; None if the task has no such rows."""
    task = from_card(predictions.task)
    rows_of_metrics, of = task.breakdown, task.breakdown_of
    names = [metric for row in rows_of_metrics.values() for metric in row.values()]
    if not names:
        return None
    estimates = summarize(predictions, metrics=names, level=level, draws=draws, seed=seed)
    rows, records = [], []
    for label, metrics in rows_of_metrics.items():
        for model, found in estimates.items():
            cells = [style.format_estimate(found[metric]) for metric in metrics.values()]
            rows.append(tuple(map(Cell, (label, model, *cells))))
            for title, metric in metrics.items():
                numbers = {name: float(getattr(found[metric], name)) for name in _NUMBERS}
                records.append({of: label, "model": model, "metric": title, **numbers})
    header = (of, "model", *next(iter(rows_of_metrics.values())))
    caption = f"Each {of} by itself. {task.breakdown_note}".rstrip()
    return ResultTable(caption, header, tuple(rows), tuple(records))


# --- misclassified units -------------------------------------------------------------------------


class Misclassification(NamedTuple):
    """A patient or slide that at least one model gets wrong."""

    name: str
    truth: str
    predicted: str
    """Class predicted by most of the wrong models."""
    num_wrong: int
    """Number of models that are wrong."""
    num_models: int
    """Number of models tested on it."""
    probability: float
    """Probability of the true class, mean over models."""


def misclassified_table(predictions: Predictions) -> ResultTable:
    """Return the misclassified units as a table, with their number in the caption."""
    found, unit = find_misclassified(predictions), find_unit(select_test_rows(predictions))
    rows = []
    for m in found:
        probability = DEFAULT_STYLE.format_number(m.probability)
        texts = (m.name, m.truth, m.predicted, f"{m.num_wrong} of {m.num_models}", probability)
        rows.append(tuple(map(Cell, texts)))
    noun = from_card(predictions.task).level_noun
    header = (
        unit,
        f"true {noun}",
        f"predicted {noun}",
        "models wrong",
        f"mean p of the true {noun}",
    )
    caption = f"{format_count(len(found), unit)} misclassified by at least one model."
    return ResultTable(caption, header, tuple(rows), tuple(m._asdict() for m in found))


def find_misclassified(predictions: Predictions) -> list[Misclassification]:
    """Return the misclassified units, those that most models get wrong first.

    A model's prediction is the mean of its probabilities over seeds, and over folds if
    cross-validation was repeated.
    """
    units = group_rows(average_by_patient(select_test_rows(predictions)), "slide_id")
    found = [_summarize_unit(name, rows) for name, rows in units.items()]
    wrong = [unit for unit in found if unit.num_wrong]
    return sorted(wrong, key=lambda m: (-m.num_wrong / m.num_models, m.probability, m.name))


def _summarize_unit(name: str, rows: Predictions) -> Misclassification:
    """Summarise the rows of one patient or slide."""
    by_model = group_rows(rows, "model").values()
    values = np.array([model.values.mean(axis=0) for model in by_model])
    truth = int(rows.label[0])
    predicted = from_card(rows.task).predict_levels(values)
    wrong = Counter(predicted[predicted != truth].tolist())
    return Misclassification(
        name=name,
        truth=rows.classes[truth],
        predicted=rows.classes[wrong.most_common(1)[0][0]] if wrong else "",
        num_wrong=wrong.total(),
        num_models=len(values),
        probability=float(values[:, truth].mean()),
    )


# --- captions ------------------------------------------------------------------------------------


def make_caption(
    predictions: Predictions,
    *,
    data: str = "",
    level: float = 0.95,
    draws: int = 2000,
    style: TableStyle = DEFAULT_STYLE,
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
    test = select_test_rows(predictions)
    spread = "mean"
    if style.shows_std and len(np.unique(test.fold)) > 1:
        spread += " ± standard deviation over folds"
    task = from_card(test.task)
    is_weighted = any(metric.fold_size is not None for metric in task.metrics.values())
    if len(np.unique(test.fold)) > 1 and is_weighted:
        spread += f", means weighted by a fold's {task.fold_size_name}; folds without a value are"
        spread += " left out"
    if with_intervals and style.shows_intervals:
        spread += f" {describe_interval(level, draws)}"
    phrases = [
        _describe_units(test),
        f"{_describe_count_range(test, 'fold')}, {_describe_count_range(test, 'seed')}",
        spread,
        "in percent" if style.percent else "",
        _describe_constant_models(test),
        f"data: {data}" if data else "",
    ]
    return "; ".join(filter(None, phrases)) + "."


def has_intervals(estimates: Estimates, style: TableStyle = DEFAULT_STYLE) -> bool:
    """Whether any estimate is printed with an interval; too few patients give none."""
    every = [estimate for row in estimates.values() for estimate in row.values()]
    return style.shows_intervals and any(
        math.isfinite(one.mean + one.low + one.high) for one in every
    )


def describe_interval(level: float, draws: int) -> str:
    """Return what a caption says of intervals."""
    return f"[{100 * level:g} % interval: patients resampled, {draws:,} draws]"


def _describe_constant_models(test: Predictions) -> str:
    """Describe the models that predict the same for every slide; the AUC of rounding is no 0.5."""
    found = [model for model, rows in group_rows(test, "model").items() if _is_constant(rows)]
    if not found:
        return ""
    verb = "predicts" if len(found) == 1 else "predict"
    text = "the same for all slides of a fold, only rounding ranks them"
    return f"{', '.join(map(str, found))} {verb} {text}"


def _is_constant(rows: Predictions) -> bool:
    spans = [
        np.ptp(part.values, axis=0).max() / max(1.0, np.abs(part.values).max())
        for by_fold in group_rows(rows, "fold").values()
        for part in group_rows(by_fold, "seed").values()
        if len(part) > 1
    ]
    return bool(spans) and max(spans) < _ROUNDING


def _describe_units(test: Predictions) -> str:
    """Describe the unit and its count, by model if models differ."""
    rows_by_model = group_rows(test, "model")
    models_by_text: dict[str, list[str]] = {}
    for model, unit in find_unit_by_model(test).items():
        rows = rows_by_model[model]
        patients = format_count(len(np.unique(rows.patient_id)), "patient")
        slides = format_count(len(np.unique(rows.slide_id)), "slide")
        counts = f"{patients}, {slides}" if unit == "patient" else f"{slides} of {patients}"
        models_by_text.setdefault(f"the {unit} ({counts})", []).append(model)
    if len(models_by_text) < 2:
        return f"Unit: {next(iter(models_by_text), 'none')}"
    return "Unit: " + "; ".join(
        f"{text} for {', '.join(models)}" for text, models in models_by_text.items()
    )


def _describe_count_range(test: Predictions, column: str) -> str:
    """Describe how many folds or seeds a model has, as a range if models differ."""
    found = {len(group_rows(rows, column)) for rows in group_rows(test, "model").values()}
    few, many = min(found, default=0), max(found, default=0)
    return format_count(many, column) if few == many else f"{few} to {format_count(many, column)}"
