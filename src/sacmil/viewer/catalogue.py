"""The list of slides and predictions as the page reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sacmil.errors import SacMILError
from sacmil.heatmap.colors import make_color_scale
from sacmil.results import Results, SlideResult, StoredPrediction


def make_results_document(
    title: str,
    results: Results,
    find: Callable[[SlideResult], object],
    has_file: Callable[[str | None], bool],
) -> dict[str, Any]:
    """Return the document of /api/results.

    Args:
        title: of the page.
        results: content of results.json.
        find: finds a slide without opening it, or raises a SacMILError.
        has_file: whether a path of results.json is a file that may be read.
    """
    numbers = {model.name: number for number, model in enumerate(results.models)}
    return {
        "title": title,
        "classes": list(results.classes),
        "models": [
            {"name": model.name, "hash": model.hash, "members": model.members}
            for model in results.models
        ],
        "colors": make_color_scale().tolist(),
        "slides": [
            _make_slide_entry(slide, explain_unavailable(slide, find), has_file)
            | {
                "predictions": [
                    _make_prediction_entry(prediction, numbers, results.classes, has_file)
                    for prediction in slide.answers
                ]
            }
            for slide in results.slides
        ],
    }


def explain_unavailable(slide: SlideResult, find: Callable[[SlideResult], object]) -> str | None:
    """Return why a slide cannot be shown, as far as known without opening it; None if it can."""
    try:
        find(slide)
    except SacMILError as error:
        return str(error)
    return None


def _make_slide_entry(
    slide: SlideResult, reason: str | None, has_file: Callable[[str | None], bool]
) -> dict[str, Any]:
    return {
        "slide_id": slide.slide_id,
        "label": slide.label,
        "size": slide.size,
        "mpp": slide.mpp,
        "zoomable": reason is None,
        "reason": reason,
        "thumbnail": has_file(slide.thumbnail),
        "truth": has_file(slide.truth),
    }


def _make_prediction_entry(
    prediction: StoredPrediction,
    numbers: Mapping[str, int],
    classes: tuple[str, ...],
    has_file: Callable[[str | None], bool],
) -> dict[str, Any]:
    predicted = max(range(len(classes)), key=lambda c: prediction.probabilities[c])
    return {
        "model": numbers[prediction.model],
        "probabilities": prediction.probabilities,
        "spread": prediction.spread,
        "predicted": classes[predicted],
        "has_scores": has_file(prediction.scores),
    }
