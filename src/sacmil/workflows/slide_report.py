"""The page of one slide, with a section about each model: one HTML file without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from sacmil.atomic import atomic_write
from sacmil.deploy.load import LoadedModel
from sacmil.evaluation.html_page import render_page
from sacmil.results import ModelInfo, StoredPrediction
from sacmil.workflows.input_requirements import InputRequirements
from sacmil.workflows.prediction_folder import PredictionFolder, SlidePredictions

_CLEAR_PROBABILITY, _LEANING_PROBABILITY = 0.9, 0.7
"""Minimum probability of a clear prediction, and of a leaning one."""
_LARGE_SPREAD = 0.15
"""Minimum spread at which the page points out disagreement."""
_MAX_MEMBER_MARKS = 40
"""Maximum number of members with a mark each; of more, only the range is shown."""
_METRIC_TITLES = {
    "auc": "AUC",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "brier": "Brier score",
}
"""Metrics of cards that are shown, in this order, with their titles."""


def write_slide_report(
    folder: PredictionFolder,
    record: SlidePredictions,
    models: Sequence[ModelInfo],
    facts: Sequence[ModelSummary],
) -> Path:
    """Write the page of a slide atomically.

    Args:
        folder: folder of images and pages.
        record: predictions of the slide.
        models: models that predicted; the page shows the last one's prediction.
        facts: sections about the models.
    """
    path = folder.report_path(record.slide_id)
    with atomic_write(path) as partial:
        partial.write_text(render_slide_report(folder.out, record, models, facts), encoding="utf-8")
    return path


def render_slide_report(
    root: Path, record: SlidePredictions, models: Sequence[ModelInfo], facts: Sequence[ModelSummary]
) -> str:
    """Return the page as text; arguments as of write_slide_report, paths relative to root."""
    predictions = record.select_models(models)
    prediction, classes = predictions[-1], record.classes
    by_class = list(zip(classes, prediction.probabilities, strict=True))
    with_marks = 1 < len(prediction.members) <= _MAX_MEMBER_MARKS
    marks = zip(*prediction.members, strict=True) if with_marks else repeat(())
    drawn = prediction.class_pictures
    return render_page(
        "slide.html",
        title=record.slide_id,
        warnings=record.warnings,
        root=root,
        record=record,
        predictions=predictions,
        prediction=prediction,
        predicted_class=lambda one: one.find_predicted_class(classes),
        is_undecided=max(prediction.probabilities) < _LEANING_PROBABILITY,
        reading=describe_prediction(classes, prediction),
        bars=[(*pair, given) for pair, given in zip(by_class, marks, strict=False)],
        class_pictures=[
            (name, p, drawn[name])
            for name, p in sorted(by_class, key=lambda pair: -pair[1])
            if name in drawn
        ],
        slide=_describe_slide(record),
        models=facts,
        format_probability=format_probability,
    )


def format_probability(probability: float) -> str:
    """Format a probability, so that rounding never makes it certain.

    >>> format_probability(0.5), format_probability(0.9996), format_probability(0.0002)
    ('0.50', '> 0.99', '< 0.01')
    """
    if probability > 0.99:
        return "> 0.99"
    return "< 0.01" if probability < 0.01 else f"{probability:.2f}"


def describe_prediction(classes: Sequence[str], prediction: StoredPrediction) -> str:
    """Describe a prediction in plain words.

    Args:
        classes: their names.
        prediction: prediction of one model or an ensemble.
    """
    order = sorted(range(len(classes)), key=lambda c: -prediction.probabilities[c])
    first, second = order[:2]
    best = prediction.probabilities[first]
    if best >= _CLEAR_PROBABILITY:
        count = len(classes) - 1
        others = classes[second] if count == 1 else f"the {count} other classes"
        words = f"The model clearly favours {classes[first]} over {others}"
    elif best >= _LEANING_PROBABILITY:
        words = f"The model leans towards {classes[first]}, but not clearly"
    else:
        words = f"The model is undecided between {classes[first]} and {classes[second]}"
    return (
        f"{words} (probability {format_probability(best)}). "
        f"{_describe_agreement(classes, prediction, first)}{_CAUTION}"
    )


_CAUTION = (
    "This number is the model's confidence, not the probability of a disease. It depends on the "
    "slides the model was trained on, and models are often over-confident."
)


def _describe_agreement(classes: Sequence[str], prediction: StoredPrediction, first: int) -> str:
    count = len(prediction.members)
    if count == 1 or prediction.spread is None:
        return ""
    in_favor = sum(max(range(len(one)), key=one.__getitem__) == first for one in prediction.members)
    given = [one[first] for one in prediction.members]
    everyone = "Both" if count == 2 else f"All {count}"
    agreed = f"{everyone} members agree"
    if in_favor < count:
        agreed = f"{in_favor} of {count} members predict {classes[first]}"
    low, high = format_probability(min(given)), format_probability(max(given))
    spread = f"(spread {prediction.spread[first]:.2f})"
    text = f"{agreed}; their probabilities range from {low} to {high} {spread}. "
    differs = "Their confidence differs a lot" if in_favor == count else "They disagree a lot"
    return text + (f"{differs}: look closely. " if prediction.spread[first] > _LARGE_SPREAD else "")


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
            "Classes": ", ".join(ensemble.classes),
            "Trained on": _describe_training(card.training)
            + (" (the first member)" if several else ""),
            "Tested": _describe_test([one.metrics for one in cards]),
            "Encoder": needs.encoder or "not known",
            "Tiles": _describe_tiles(needs),
            "Weights (SHA-256)": ensemble.hash,
            "Saved by": f"sacmil {card.sacmil_version}",
        }
        return cls(ensemble.name, facts)


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
    known = [one for one, count in zip(metrics, counts, strict=True) if _is_number(count)]
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9


def _describe_tiles(requirements: InputRequirements) -> str:
    if requirements.patch_px is not None:
        return f"{requirements.patch_px} pixels a side, µm per pixel unknown"
    if requirements.patch_um is None:
        return "not known"
    pixels = f", {requirements.tile_px} pixels" if requirements.tile_px else ""
    return f"{requirements.patch_um:.4g} µm a side{pixels}"
