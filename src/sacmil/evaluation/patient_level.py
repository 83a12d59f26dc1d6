"""What a figure counts: patients, or slides where the slides of a patient differ in label."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from sacmil.results import Predictions

_DIGITS = 12

_SORT_COLUMNS = ("slide_id", "patient_id", "split", "fold", "seed", "model")
"""What tells rows apart, least important first, for sorting."""


Unit = Literal["patient", "slide"]


def find_unit(predictions: Predictions) -> Unit:
    """The patient, unless a model was tested on a patient with slides of different labels."""
    return "slide" if "slide" in find_unit_by_model(predictions).values() else "patient"


def find_unit_by_model(predictions: Predictions) -> dict[str, Unit]:
    """By model, for what stands beside a model must not change what is counted of it."""
    found: dict[str, Unit] = {}
    for model in np.unique(predictions.model):
        rows = predictions.model == model
        patients = predictions.patient_id[rows].tolist()
        pairs = {*zip(patients, predictions.label[rows].tolist(), strict=True)}
        found[str(model)] = "patient" if len(pairs) == len(set(patients)) else "slide"
    return found


def average_by_patient(predictions: Predictions) -> Predictions:
    """A row per patient with the mean of the slides' probabilities, where the unit is the patient.

    Rows come sorted by model, seed, fold, split and patient, whatever order they had. A patient's
    row carries the patient's id as its slide_id. Rows of models whose unit is the slide stay.
    """
    whole = [model for model, unit in find_unit_by_model(predictions).items() if unit == "patient"]
    chosen = np.isin(predictions.model, whole)
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
    # Sums of the same numbers in another order differ in their last digits; ties must stay ties.
    return replace(
        rows.select(begins), slide_id=rows.patient_id[begins], probabilities=means.round(_DIGITS)
    )


def sort_rows(predictions: Predictions) -> Predictions:
    """The rows sorted by model, seed, fold, split, patient and slide."""
    return predictions.select(np.lexsort([getattr(predictions, name) for name in _SORT_COLUMNS]))


def _is_first_of_patient(rows: Predictions) -> npt.NDArray[np.bool_]:
    another = np.ones(len(rows), dtype=np.bool_)
    columns = [getattr(rows, name) for name in _SORT_COLUMNS if name != "slide_id"]
    another[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return another
