"""The list of slides with what was said of them, as the page takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sacmil.errors import SacMILError
from sacmil.heatmap.colours import colour_scale
from sacmil.results import Answer, Results, SlideResult


def catalogue(
    title: str,
    results: Results,
    find: Callable[[SlideResult], object],
    is_there: Callable[[str | None], bool],
) -> dict[str, Any]:
    """All of /api/results.

    Args:
        title: of the page.
        results: what results.json says.
        find: finds a slide without opening it, or raises a SacMILError.
        is_there: whether a path of results.json leads to a file that may be read.
    """
    numbers = {model.name: number for number, model in enumerate(results.models)}
    return {
        "title": title,
        "classes": list(results.classes),
        "models": [
            {"name": model.name, "hash": model.hash, "members": model.members}
            for model in results.models
        ],
        "colours": colour_scale().tolist(),
        "slides": [
            _slide(slide, why_not(slide, find), is_there)
            | {
                "answers": [
                    _answer(answer, numbers, results.classes, is_there) for answer in slide.answers
                ]
            }
            for slide in results.slides
        ],
    }


def why_not(slide: SlideResult, find: Callable[[SlideResult], object]) -> str | None:
    """Why a slide cannot be shown, as far as that is known without opening it."""
    try:
        find(slide)
    except SacMILError as error:
        return str(error)
    return None


def _slide(
    slide: SlideResult, reason: str | None, is_there: Callable[[str | None], bool]
) -> dict[str, Any]:
    return {
        "slide_id": slide.slide_id,
        "label": slide.label,
        "size": slide.size,
        "mpp": slide.mpp,
        "zoomable": reason is None,
        "why_not": reason,
        "thumbnail": is_there(slide.thumbnail),
        "truth": is_there(slide.truth),
    }


def _answer(
    answer: Answer,
    numbers: Mapping[str, int],
    classes: tuple[str, ...],
    is_there: Callable[[str | None], bool],
) -> dict[str, Any]:
    likeliest = max(range(len(classes)), key=lambda c: answer.probabilities[c])
    return {
        "model": numbers[answer.model],
        "probabilities": answer.probabilities,
        "spread": answer.spread,
        "predicted": classes[likeliest],
        "scored": is_there(answer.scores),
    }
