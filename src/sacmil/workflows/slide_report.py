"""The page of one slide: one self-contained HTML file without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from pathlib import Path

from sacmil.atomic import atomic_write
from sacmil.evaluation.html_page import render_page
from sacmil.results import ModelInfo, StoredPrediction
from sacmil.workflows.model_summary import ModelSummary
from sacmil.workflows.prediction_folder import PredictionFolder, SlidePredictions

_CLEAR_PROBABILITY, _LEANING_PROBABILITY = 0.9, 0.7
"""Minimum probability of a clear prediction, and of a leaning one."""
_LARGE_SPREAD = 0.15
"""Minimum spread at which the page points out disagreement."""
_MAX_MEMBER_MARKS = 40
"""Maximum number of members with a mark each; of more, only the range is shown."""


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
        words = (
            f"The model clearly favours {classes[first]} over {_describe_others(classes, second)}"
        )
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


def _describe_others(classes: Sequence[str], second: int) -> str:
    return classes[second] if len(classes) == 2 else f"the {len(classes) - 1} other classes"


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
    text = (
        f"{agreed}; their probabilities range from {format_probability(min(given))} to "
        f"{format_probability(max(given))} "
        f"(spread {prediction.spread[first]:.2f}). "
    )
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
