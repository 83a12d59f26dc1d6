"""Localisation of each model over patients, and which model localises better.

The unit is the patient: a patient's value is the mean over slides, a slide's the mean over folds
and seeds. Only slides with positive and negative instances count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sacmil.errors import ConfigError, RunError, suggestion
from sacmil.evaluation.comparison import (
    Comparison,
    choose_pairs,
    correct_for_pairs,
    enough_draws,
)
from sacmil.evaluation.intervals import check_settings, percentiles
from sacmil.evaluation.metrics import LOCALISATION_TITLES
from sacmil.evaluation.permutation import sign_flip_test
from sacmil.evaluation.summary import Figure
from sacmil.results import SlideLocalisation

Floats = npt.NDArray[np.float64]
_COLUMNS = {"localisation_auc": "auc", "localisation_ap": "average_precision"}
_FEWEST = 3
"""Patients that an interval needs; two are in nearly every resample."""


@dataclass(frozen=True)
class LocalisationSummary:
    """How well one model localises."""

    figures: Mapping[str, Figure]
    """By metric: localisation_auc and localisation_ap; the mean is over patients."""
    chance: float
    """Average precision of random scores: the mean share of positive instances."""
    patients: int
    slides: int
    """Those with positive and negative instances."""
    folds: int


def summarise_localisation(
    rows: Sequence[SlideLocalisation], *, level: float = 0.95, draws: int = 2000, seed: int = 0
) -> dict[str, LocalisationSummary]:
    """Localisation AUC and average precision of every model, with intervals over patients.

    Args:
        rows: as read_localisation gives them, of one or more models.
        level: of the intervals.
        draws: how many times patients are resampled.
        seed: of the resampling.
    """
    check_settings(level=level, draws=draws)
    return {
        model: _summarise(found, level, draws, seed)
        for model, found in _group_by_model(rows).items()
    }


def compare_localisation(
    rows: Sequence[SlideLocalisation],
    *,
    metric: str = "localisation_auc",
    against: str | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> list[Comparison]:
    """Compare how well models localise on the same slides; p is of the permutation test.

    Args:
        rows: of two or more models.
        metric: localisation_auc or localisation_ap.
        against: one model, compared with each other one; every two models if left out.
        level: of the intervals.
        draws: how many times patients are resampled; swapped at least as often.
        seed: of both.

    Raises:
        RunError: a model is missing, or the models were tested on different slides.
    """
    check_localisation_metric(metric)
    check_settings(level=level, draws=draws)
    models = _group_by_model(rows)
    pairs = choose_pairs(list(models), None, against)
    _check_same_slides(models)
    values = {model: _patient_values(found, metric) for model, found in models.items()}
    enough = enough_draws(draws, len(pairs), level)
    found = []
    for first, second in pairs:
        differences = values[first] - values[second]
        low, high = _interval(differences, level, draws, seed)
        found.append(
            Comparison(
                first=first,
                second=second,
                metric=metric,
                difference=float(differences.mean()),
                low=low,
                high=high,
                p_permutation=sign_flip_test(
                    differences / len(differences), draws=enough, seed=seed
                ),
                p_t=None,
                p_delong=None,
                p_holm=None,
                patients=len(differences),
            )
        )
    return correct_for_pairs(found)


def check_localisation_metric(name: str) -> str:
    """The name, if it is a metric of localisation."""
    if name not in LOCALISATION_TITLES:
        raise ConfigError(
            f"there is no metric of localisation {name!r}; {suggestion(name, LOCALISATION_TITLES)}"
        )
    return name


def _group_by_model(rows: Sequence[SlideLocalisation]) -> dict[str, list[SlideLocalisation]]:
    """The rows that count, by model in alphabetical order."""
    models: dict[str, list[SlideLocalisation]] = {}
    for row in sorted(rows, key=lambda row: row.model):
        if row.has_both_kinds:
            models.setdefault(row.model, []).append(row)
    return models


def _summarise(
    rows: Sequence[SlideLocalisation], level: float, draws: int, seed: int
) -> LocalisationSummary:
    return LocalisationSummary(
        figures={
            metric: _figure(_patient_values(rows, metric), level, draws, seed)
            for metric in LOCALISATION_TITLES
        },
        chance=float(
            _mean_by_patient(rows, [row.positives / row.instances for row in rows]).mean()
        ),
        patients=len({row.patient_id for row in rows}),
        slides=len({row.slide_id for row in rows}),
        folds=len({row.fold for row in rows}),
    )


def _figure(values: Floats, level: float, draws: int, seed: int) -> Figure:
    low, high = _interval(values, level, draws, seed)
    return Figure((), float(values.mean()), math.nan, low, high)


def _patient_values(rows: Sequence[SlideLocalisation], metric: str) -> Floats:
    return _mean_by_patient(rows, [getattr(row, _COLUMNS[metric]) for row in rows])


def _mean_by_patient(rows: Sequence[SlideLocalisation], values: Sequence[float]) -> Floats:
    """(patients,), in the order of their names: the mean over slides of the mean over rows."""
    slides: dict[tuple[str, str], list[float]] = {}
    for row, value in zip(rows, values, strict=True):
        slides.setdefault((row.patient_id, row.slide_id), []).append(value)
    patients: dict[str, list[float]] = {}
    for (patient, _), found in sorted(slides.items()):
        patients.setdefault(patient, []).append(float(np.mean(found)))
    return np.array([np.mean(found) for found in patients.values()])


def _interval(values: Floats, level: float, draws: int, seed: int) -> tuple[float, float]:
    """Of the mean over patients, who are resampled; the same for every model of one seed."""
    count = len(values)
    if count < _FEWEST:
        return math.nan, math.nan
    random = np.random.default_rng(seed)
    means = [values[random.integers(count, size=count)].mean() for _ in range(draws)]
    return percentiles(np.array(means), level)


def _check_same_slides(models: Mapping[str, Sequence[SlideLocalisation]]) -> None:
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
                f"{fold}, in one only); expected the same for both: use the same bags and --splits"
            )
