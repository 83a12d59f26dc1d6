"""Localisation: instance scores compared with instance labels, by slide, by model and in pairs.

The unit of summaries and comparisons is the patient: a patient's value is the mean over slides, a
slide's the mean over folds and seeds. Only slides with positive and negative instances count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sacmil.errors import ConfigError, RunError, suggest_names
from sacmil.evaluation.comparison import PairComparison, choose_pairs, correct_for_multiple_pairs
from sacmil.evaluation.significance import count_needed_draws, sign_flip_test
from sacmil.evaluation.summary import MetricEstimate, check_level_and_draws, percentile_interval
from sacmil.metrics.classification import auc, average_precision
from sacmil.results import SlideLocalization

Floats = npt.NDArray[np.float64]
LOCALIZATION_TITLES: Mapping[str, str] = {
    "localisation_auc": "Localisation AUC",
    "localisation_ap": "Localisation AP",
}
"""Titles of localisation metrics, computed from localisation_by_slide.csv."""
_COLUMNS = {"localisation_auc": "auc", "localisation_ap": "average_precision"}
_MIN_PATIENTS = 3
"""Minimum number of patients for an interval; two are in nearly every resample."""


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


def measure_slide_localization(
    keys: tuple[str, str, int, int, str], scores: npt.ArrayLike, labels: npt.ArrayLike
) -> SlideLocalization:
    """Compare the scores of one slide with the labels of its instances.

    Args:
        keys: slide, patient, fold, seed and model.
        scores: (N,).
        labels: (N,): above zero is positive, zero negative, below zero unknown.
    """
    truth, values = _select_labeled(keys[0], scores, labels)
    counts = (len(truth), int(truth.sum()))
    return SlideLocalization(*keys, *counts, auc(truth, values), average_precision(truth, values))


def measure_localization(
    scores_by_slide: Mapping[str, npt.ArrayLike], truth_by_slide: Mapping[str, npt.ArrayLike]
) -> Localization:
    """Compare instance scores with instance truth.

    Args:
        scores_by_slide: slide id to (N,) scores, higher for the model's class.
        truth_by_slide: slide id to (N,) labels: above zero is positive, zero negative, and below
            zero unknown, which is left out.
    """
    slides = []
    for slide, scores_of_slide in sorted(scores_by_slide.items()):
        if slide not in truth_by_slide:
            problem = "has scores but no instance labels; expected a label per instance"
            raise RunError(f"{slide}: {problem}")
        slides.append(_select_labeled(slide, scores_of_slide, truth_by_slide[slide]))
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
    slide: str, scores: npt.ArrayLike, labels: npt.ArrayLike
) -> tuple[npt.NDArray[np.bool_], Floats]:
    scores, labels = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    if labels.shape != scores.shape or labels.ndim != 1:
        raise RunError(
            f"{slide}: has scores of shape {scores.shape} and labels of shape {labels.shape}; "
            "expected one of each per instance"
        )
    known = labels >= 0
    return labels[known] > 0, scores[known]


def _mean_or_nan(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


# --- summaries and comparisons -------------------------------------------------------------------


@dataclass(frozen=True)
class LocalizationSummary:
    """How well one model localises."""

    estimates: Mapping[str, MetricEstimate]
    """By metric: localisation_auc and localisation_ap; the mean is over patients."""
    chance: float
    """Average precision of random scores: the mean share of positive instances."""
    patients: int
    slides: int
    """Number of slides with positive and negative instances."""
    folds: int


def summarize_localization(
    rows: Sequence[SlideLocalization], *, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> dict[str, LocalizationSummary]:
    """Return localisation AUC and average precision of every model, with intervals over patients.

    Args:
        rows: from read_localization, of one or more models.
        level: confidence level of the intervals.
        draws: number of resamples of patients.
        seed: of the resampling.
    """
    check_level_and_draws(level=level, draws=draws)
    return {
        model: _summarize_model(found, level, draws, seed)
        for model, found in _group_by_model(rows).items()
    }


def compare_localization(
    rows: Sequence[SlideLocalization],
    *,
    metric: str = "localisation_auc",
    against: str | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> list[PairComparison]:
    """Compare the localisation of models on the same slides with a permutation test.

    Args:
        rows: of two or more models.
        metric: localisation_auc or localisation_ap.
        against: one model to compare with each of the others; all pairs if omitted.
        level: confidence level of the intervals.
        draws: number of resamples; the permutation test samples at least as many arrangements.
        seed: of resamples and arrangements.

    Raises:
        RunError: a model is missing, or the models were tested on different slides.
    """
    if metric not in LOCALIZATION_TITLES:
        known = suggest_names(metric, LOCALIZATION_TITLES)
        raise ConfigError(f"there is no localisation metric {metric!r}; {known}")
    check_level_and_draws(level=level, draws=draws)
    models = _group_by_model(rows)
    pairs = choose_pairs(list(models), against=against)
    _check_same_slides(models)
    values = {model: _patient_values(found, metric) for model, found in models.items()}
    enough = count_needed_draws(draws, len(pairs), level)
    found = []
    for first, second in pairs:
        differences = values[first] - values[second]
        low, high = _bootstrap_interval(differences, level, draws, seed)
        patients = len(differences)
        p = sign_flip_test(differences / patients, draws=enough, seed=seed)
        mean = float(differences.mean())
        title = LOCALIZATION_TITLES[metric]
        pair = PairComparison(
            first, second, metric, mean, low, high, p, patients=patients, title=title
        )
        found.append(pair)
    return correct_for_multiple_pairs(found)


def _group_by_model(rows: Sequence[SlideLocalization]) -> dict[str, list[SlideLocalization]]:
    """Return the rows of slides with both kinds of instances, by model, sorted by name."""
    models: dict[str, list[SlideLocalization]] = {}
    for row in sorted(rows, key=lambda row: row.model):
        if row.has_both_labels:
            models.setdefault(row.model, []).append(row)
    return models


def _summarize_model(
    rows: Sequence[SlideLocalization], level: float, draws: int, seed: int
) -> LocalizationSummary:
    estimates = {}
    for metric in LOCALIZATION_TITLES:
        values = _patient_values(rows, metric)
        low, high = _bootstrap_interval(values, level, draws, seed)
        title = LOCALIZATION_TITLES[metric]
        estimates[metric] = MetricEstimate((), float(values.mean()), math.nan, low, high, title)
    shares = [row.positives / row.instances for row in rows]
    return LocalizationSummary(
        estimates=estimates,
        chance=float(_mean_by_patient(rows, shares).mean()),
        patients=len({row.patient_id for row in rows}),
        slides=len({row.slide_id for row in rows}),
        folds=len({row.fold for row in rows}),
    )


def _patient_values(rows: Sequence[SlideLocalization], metric: str) -> Floats:
    return _mean_by_patient(rows, [getattr(row, _COLUMNS[metric]) for row in rows])


def _mean_by_patient(rows: Sequence[SlideLocalization], values: Sequence[float]) -> Floats:
    """Return the mean over slides of the mean over rows: (patients,), sorted by name."""
    slides: dict[tuple[str, str], list[float]] = {}
    for row, value in zip(rows, values, strict=True):
        slides.setdefault((row.patient_id, row.slide_id), []).append(value)
    patients: dict[str, list[float]] = {}
    for (patient, _), found in sorted(slides.items()):
        patients.setdefault(patient, []).append(float(np.mean(found)))
    return np.array([np.mean(found) for found in patients.values()])


def _bootstrap_interval(values: Floats, level: float, draws: int, seed: int) -> tuple[float, float]:
    """Return the interval of the mean over patients; a seed gives every model equal resamples."""
    count = len(values)
    if count < _MIN_PATIENTS:
        return math.nan, math.nan
    random = np.random.default_rng(seed)
    means = [values[random.integers(count, size=count)].mean() for _ in range(draws)]
    return percentile_interval(np.array(means), level)


def _check_same_slides(models: Mapping[str, Sequence[SlideLocalization]]) -> None:
    tested = {
        model: {(row.slide_id, row.patient_id, row.fold) for row in rows}
        for model, rows in models.items()
    }
    names = list(tested)
    for other in names[1:]:
        if odd := sorted(tested[names[0]] ^ tested[other]):
            slide, _, fold = odd[0]
            raise RunError(
                f"{names[0]} and {other} have instance labels on different slides ({slide}, fold "
                f"{fold}, in one only); expected the same for both: use the same bags and splits"
            )
