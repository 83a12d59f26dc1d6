"""What a figure counts: patients, or slides where the slides of a patient differ in label."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from sacmil.results import Predictions

_ROW = ("slide_id", "patient_id", "split", "fold", "seed", "model")
"""What tells rows apart, least important first, for sorting."""


def unit_of(predictions: Predictions) -> Literal["patient", "slide"]:
    """The patient, unless some patient has slides of different labels."""
    pairs = {*zip(predictions.patient_id.tolist(), predictions.label.tolist(), strict=True)}
    patients = {patient for patient, _ in pairs}
    return "patient" if len(pairs) == len(patients) else "slide"


def to_units(predictions: Predictions) -> Predictions:
    """A row per patient with the mean of the slides' probabilities, where the unit is the patient.

    Rows come sorted by model, seed, fold, split and patient, whatever order they had. A patient's
    row carries the patient's id as its slide_id. Where the unit is the slide nothing is changed.
    """
    if unit_of(predictions) == "slide" or not len(predictions):
        return predictions
    rows = in_order(predictions)
    begins = np.flatnonzero(_is_another_patient(rows))
    slides = np.diff(begins, append=len(rows))
    means = np.add.reduceat(rows.probabilities, begins, axis=0) / slides[:, None]
    first = rows.where(begins)
    return Predictions(
        classes=first.classes,
        slide_id=first.patient_id,
        patient_id=first.patient_id,
        split=first.split,
        fold=first.fold,
        seed=first.seed,
        model=first.model,
        label=first.label,
        probabilities=means,
    )


def in_order(predictions: Predictions) -> Predictions:
    """The rows sorted by model, seed, fold, split, patient and slide."""
    return predictions.where(np.lexsort([getattr(predictions, name) for name in _ROW]))


def _is_another_patient(rows: Predictions) -> npt.NDArray[np.bool_]:
    another = np.ones(len(rows), dtype=np.bool_)
    columns = [getattr(rows, name) for name in _ROW if name != "slide_id"]
    another[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return another
