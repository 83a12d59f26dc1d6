"""Localisation metrics: instance scores compared with instance labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.errors import RunError
from sacmil.evaluation.metrics import auc, average_precision


@dataclass(frozen=True)
class Localization:
    """How well scores find the instances of a class; NaN if no slide has both kinds."""

    auc: float
    """Mean over the slides that have instances of both kinds."""
    average_precision: float
    """The same mean; chance is a slide's share of positives, not a half."""
    pooled_auc: float
    """Over the instances of all slides; meaningful only if scores compare between slides."""
    pooled_average_precision: float
    slides: int
    """Number of slides that have instances of both kinds."""


class LocalizationMetrics(NamedTuple):
    """How well the scores of one slide find its positive instances."""

    instances: int
    """Number of instances with a known label."""
    positives: int
    auc: float
    """NaN unless there are positive and negative instances."""
    average_precision: float


def measure_slide_localization(
    slide_id: str, scores: npt.ArrayLike, labels: npt.ArrayLike
) -> LocalizationMetrics:
    """Compare the scores of one slide with the labels of its instances.

    Args:
        slide_id: name for error messages.
        scores: (N,).
        labels: (N,): above zero is positive, zero negative, below zero unknown.
    """
    truth, values = _select_labeled(slide_id, {slide_id: scores}, {slide_id: labels})
    counts = (len(truth), int(truth.sum()))
    return LocalizationMetrics(*counts, auc(truth, values), average_precision(truth, values))


def measure_localization(
    scores_by_slide: Mapping[str, npt.ArrayLike], truth_by_slide: Mapping[str, npt.ArrayLike]
) -> Localization:
    """Compare instance scores with instance truth.

    Args:
        scores_by_slide: slide id to (N,) scores, higher for the model's class.
        truth_by_slide: slide id to (N,) labels: above zero is positive, zero negative, and below
            zero unknown, which is left out.
    """
    slides = [
        _select_labeled(slide, scores_by_slide, truth_by_slide) for slide in sorted(scores_by_slide)
    ]
    if not slides:
        return Localization(np.nan, np.nan, np.nan, np.nan, 0)
    both = [(truth, scores) for truth, scores in slides if truth.any() and not truth.all()]
    truth, scores = (np.concatenate(column) for column in zip(*slides, strict=True))
    return Localization(
        auc=_mean_or_nan([auc(*slide) for slide in both]),
        average_precision=_mean_or_nan([average_precision(*slide) for slide in both]),
        pooled_auc=auc(truth, scores),
        pooled_average_precision=average_precision(truth, scores),
        slides=len(both),
    )


def _select_labeled(
    slide: str, scores_by_slide: Mapping[str, npt.ArrayLike], truth: Mapping[str, npt.ArrayLike]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    if slide not in truth:
        raise RunError(f"{slide}: has scores but no instance labels; expected a label per instance")
    labels = np.asarray(truth[slide])
    scores = np.asarray(scores_by_slide[slide], dtype=np.float64)
    if labels.shape != scores.shape or labels.ndim != 1:
        raise RunError(
            f"{slide}: has scores of shape {scores.shape} and labels of shape {labels.shape}; "
            "expected one of each per instance"
        )
    known = labels >= 0
    return labels[known] > 0, scores[known]


def _mean_or_nan(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
