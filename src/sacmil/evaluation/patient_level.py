"""The unit of metrics: the patient, or the slide if a patient's slides differ in label."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from sacmil.results import Predictions

_DIGITS = 12

_SORT_COLUMNS = ("slide_id", "patient_id", "split", "fold", "seed", "model")
"""Columns to sort by, least important first."""


Unit = Literal["patient", "slide"]


def find_unit(predictions: Predictions) -> Unit:
    """Return "slide" if a model was tested on a patient with slides of different labels."""
    return "slide" if "slide" in find_unit_by_model(predictions).values() else "patient"


def find_unit_by_model(predictions: Predictions) -> dict[str, Unit]:
    """Return the unit of each model, so that other models do not change a model's metrics."""
    found: dict[str, Unit] = {}
    for model in np.unique(predictions.model):
        rows = predictions.model == model
        patients = predictions.patient_id[rows].tolist()
        pairs = {*zip(patients, predictions.label[rows].tolist(), strict=True)}
        found[str(model)] = "patient" if len(pairs) == len(set(patients)) else "slide"
    return found


def average_by_patient(predictions: Predictions) -> Predictions:
    """Average the slides' probabilities of each patient, for models whose unit is the patient.

    These rows are sorted by model, seed, fold, split and patient. A patient's row has the patient's
    id as its slide_id. Rows of models whose unit is the slide stay.
    """
    by_patient = [m for m, unit in find_unit_by_model(predictions).items() if unit == "patient"]
    chosen = np.isin(predictions.model, by_patient)
    if not chosen.any():
        return predictions
    return Predictions.concatenate(
        [_average_slides(predictions.select(chosen)), predictions.select(~chosen)]
    )


def _average_slides(predictions: Predictions) -> Predictions:
    rows = sort_rows(predictions)
    begins = np.flatnonzero(_is_first_of_patient(rows))
    slides = np.diff(begins, append=len(rows))
    means = np.add.reduceat(rows.probabilities, begins, axis=0) / slides[:, None]
    # Sums of the same numbers in is_first order differ in their last digits; ties must stay ties.
    return replace(
        rows.select(begins), slide_id=rows.patient_id[begins], probabilities=means.round(_DIGITS)
    )


def sort_rows(predictions: Predictions) -> Predictions:
    """Return the rows sorted by model, seed, fold, split, patient and slide."""
    return predictions.select(np.lexsort([getattr(predictions, name) for name in _SORT_COLUMNS]))


def _is_first_of_patient(rows: Predictions) -> npt.NDArray[np.bool_]:
    is_first = np.ones(len(rows), dtype=np.bool_)
    columns = [getattr(rows, name) for name in _SORT_COLUMNS if name != "slide_id"]
    is_first[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return is_first
