"""The page of one slide, with a section about each model: one HTML file without scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from sacmil.atomic import atomic_write
from sacmil.deploy.load import LoadedModel
from sacmil.evaluation.html_page import render_page
from sacmil.heatmap.curves import DrawnCurve
from sacmil.results import ModelInfo, StoredPrediction
from sacmil.tasks import Task, format_number, format_probability
from sacmil.tasks.calibration import Calibration
from sacmil.workflows.input_requirements import InputRequirements
from sacmil.workflows.prediction_folder import PredictionFolder, SlidePredictions

_MAX_MEMBER_MARKS = 40
"""Maximum number of members with a mark each; of more, only the range is shown."""
_METRIC_TITLES = {
    "auc": "AUC",
    "c": "concordance",
    "ibs": "integrated Brier score",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "brier": "Brier score",
    "r2": "R²",
    "kappa": "quadratic kappa",
    "mae": "MAE",
    "spearman": "Spearman",
    "average_precision": "average precision",
}
"""Metrics of cards that are shown, in this order, with their titles."""


def write_slide_report(
    folder: PredictionFolder,
    record: SlidePredictions,
    models: Sequence[ModelInfo],
    facts: Sequence[ModelSummary],
    task: Task,
) -> Path:
    """Write the page of a slide atomically.

    Args:
        folder: folder of images and pages.
        record: predictions of the slide.
        models: models that predicted; the page shows the last one's prediction.
        facts: sections about the models.
        task: what is predicted.
    """
    path = folder.report_path(record.slide_id)
    with atomic_write(path) as partial:
        text = render_slide_report(folder.out, record, models, facts, task)
        partial.write_text(text, encoding="utf-8")
    return path


def render_slide_report(
    root: Path,
    record: SlidePredictions,
    models: Sequence[ModelInfo],
    facts: Sequence[ModelSummary],
    task: Task,
) -> str:
    """Return the page as text; arguments as of write_slide_report, paths relative to root."""
    predictions = record.select_models(models)
    prediction = predictions[-1]
    summary = task.describe(prediction)
    format_value = _choose_format(task)
    is_share = task.are_probabilities or task.are_percentages
    with_marks = 1 < len(prediction.members) <= _MAX_MEMBER_MARKS
    marks = zip(*prediction.members, strict=True) if with_marks else repeat(())
    columns = zip(task.value_names, prediction.values, marks, strict=False)
    shown = {choice.name for choice in summary.values}
    drawn = prediction.class_pictures
    curve = DrawnCurve.from_prediction(task, prediction)
    return render_page(
        "slide.html",
        title=record.slide_id,
        warnings=record.warnings,
        root=root,
        record=record,
        predictions=predictions,
        prediction=prediction,
        predicted=lambda one: task.describe(one).predicted,
        is_undecided=summary.is_undecided,
        reading=task.explain(prediction),
        bars=[column for column in columns if column[0] in shown and is_share],
        curve=curve,
        table_columns=[
            (column, name)
            for column, name in enumerate(record.classes)
            if name in shown or not is_share  # not the points of a curve, nor the mean level
        ],
        has_classes=task.has_classes,
        score_note=_explain_scores(task, prediction),
        class_pictures=[
            (name, value, drawn[name]) for name, value in summary.values if name in drawn
        ],
        slide=_describe_slide(record),
        models=facts,
        format_value=format_value,
        format_spread=_choose_spread_format(task),
    )


def _choose_format(task: Task) -> Callable[[float], str]:
    """Return how values are written."""
    if task.are_percentages:
        return _format_percentage
    return format_probability if task.are_probabilities else format_number


def _choose_spread_format(task: Task) -> Callable[[float], str]:
    """Return how standard deviations over members are written."""
    if task.are_percentages:
        return _format_percentage
    return "{:.2f}".format if task.are_probabilities else format_number


def _format_percentage(value: float) -> str:
    return f"{value:.0%}"


def _explain_scores(task: Task, prediction: StoredPrediction) -> str:
    """Return what the scores and colors of the heatmap mean."""
    name = prediction.score_class
    effects = None if name is None else task.describe_effects(name)
    if effects and prediction.normalization == "diverging":
        above, below = effects
        return (
            f"A red tile {above}, a blue tile {below}, and one without color {task.zero_effect}. "
            "The stronger the color, the larger the effect; compare colors within this slide only."
        )
    if effects:
        text = f"The brighter a tile, the more it {effects[0]}."
    elif name is not None:
        text = f"A score shows how much a tile supports {name}."
    else:
        text = "A score shows how much a tile contributed to the prediction"
        if task.diverging_scores:
            text += ", in either direction."
        elif len(task.score_names) > 1:
            text += f"; this model has one score for all {task.names_title.lower()}."
    scope = "even if the prediction is negative" if task.has_classes else "whatever is predicted"
    return f"{text} Scores are compared within this slide only. The highest are bright {scope}."


def _describe_slide(record: SlidePredictions) -> dict[str, str]:
    size = f"{record.size[0]:,} x {record.size[1]:,} pixels" if record.size else ""
    mpp = f"{record.mpp:.4g} µm per pixel" if record.mpp else ""
    wide = f", {record.patch_um:.4g} µm a side" if record.patch_um else ""
    return {
        "Slide": ", ".join(filter(None, (record.slide_id, size, mpp))),
        "File": Path(record.item).name,
        "Tiles": f"{record.instances:,}{wide}",
        "Encoder": record.encoder or "not known",
    }


@dataclass(frozen=True)
class ModelSummary:
    """Headings and texts about a model, in order."""

    name: str
    facts: Mapping[str, str]

    @classmethod
    def from_ensemble(cls, ensemble: LoadedModel) -> ModelSummary:
        """Return the summary of an ensemble from its members' cards."""
        card, several = ensemble.members[0].card, len(ensemble.members) > 1
        needs = InputRequirements.from_card(card, ensemble.name)
        cards = [member.card for member in ensemble.members]
        members = f"{len(cards)}, trained on different splits of the data" if several else "1"
        facts = {
            "Kind": card.model,
            "Members": members,
            ensemble.task.names_title: ", ".join(ensemble.task.score_names),
            "Trained on": _describe_training(card.training)
            + (" (the first member)" if several else ""),
            "Tested": _describe_test([one.metrics for one in cards]),
            "Encoder": needs.encoder or "not known",
            "Tiles": _describe_tiles(needs),
            **_describe_calibration([member.calibration for member in ensemble.members]),
            "Weights (SHA-256)": ensemble.hash,
            "Saved by": f"sacmil {card.sacmil_version}",
        }
        return cls(ensemble.name, facts)


def _describe_calibration(calibrations: Sequence[Calibration | None]) -> dict[str, str]:
    """Return the calibration of the predictions; nothing if they are not calibrated."""
    applied = [one.description for one in calibrations if one is not None]
    several = " (the first member)" if len(applied) > 1 else ""
    return {"Calibration": applied[0] + several} if applied else {}


def _describe_training(training: Mapping[str, Any]) -> str:
    slides = training.get("slides")
    if not isinstance(slides, dict) or "train" not in slides:
        return "not known: not in the card"
    others = {"val": "validation", "test": "testing"}
    phrases = [f"{slides[name]} for {text}" for name, text in others.items() if slides.get(name)]
    return "; ".join([f"{slides['train']} slides", *phrases])


def _describe_test(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Describe the test metrics of one model, or their mean and range over members."""
    counts = [one.get("slides") for one in metrics]
    known = [one for one, count in zip(metrics, counts, strict=True) if _is_count(count)]
    values = ", ".join(filter(None, (_format_metric(name, known) for name in _METRIC_TITLES)))
    if not values:
        return "not known: no metrics in the card"
    slides = sum(int(one["slides"]) for one in known)
    if len(metrics) == 1:
        return f"{values}; on {slides} test slides"
    tested = "members" if len(known) == len(metrics) else f"{len(known)} of {len(metrics)} members"
    return (
        f"{values}; mean and range over {tested}, each on its own test slides, {slides} in all. "
        "The ensemble was not tested."
    )


def _format_metric(name: str, metrics: Sequence[Mapping[str, Any]]) -> str:
    values = [float(one[name]) for one in metrics if _is_number(one.get(name))]
    if not values:
        return ""
    mean = f"{_METRIC_TITLES[name]} {sum(values) / len(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def _describe_tiles(requirements: InputRequirements) -> str:
    if requirements.patch_px is not None:
        return f"{requirements.patch_px} pixels a side, µm per pixel unknown"
    if requirements.patch_um is None:
        return "not known"
    pixels = f", {requirements.tile_px} pixels" if requirements.tile_px else ""
    return f"{requirements.patch_um:.4g} µm a side{pixels}"
