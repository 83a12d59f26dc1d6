"""Misclassified patients, or slides where slides are the unit."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.evaluation.patient_level import average_by_patient, find_unit
from sacmil.evaluation.table_format import Cell, ResultTable
from sacmil.evaluation.tables import TableStyle, format_count, select_test_rows
from sacmil.results import Predictions


class Misclassification(NamedTuple):
    """A patient or slide that at least one model gets wrong."""

    name: str
    truth: str
    predicted: str
    """Class predicted by most of the wrong models."""
    num_wrong: int
    """Number of models that are wrong."""
    num_models: int
    """Number of models tested on it."""
    probability: float
    """Probability of the true class, mean over models."""


def find_misclassified(predictions: Predictions) -> list[Misclassification]:
    """Return the misclassified units, those that most models get wrong first.

    A model's prediction is the mean of its probabilities over seeds, and over folds if
    cross-validation was repeated.
    """
    units = average_by_patient(select_test_rows(predictions))
    found = [_summarize_unit(units.select(rows)) for rows in _group_rows(units.slide_id)]
    wrong = [unit for unit in found if unit.num_wrong]
    return sorted(wrong, key=lambda m: (-m.num_wrong / m.num_models, m.probability, m.name))


def misclassified_table(predictions: Predictions) -> ResultTable:
    """Return the misclassified units as a table, with their number in the caption."""
    found, unit = find_misclassified(predictions), find_unit(select_test_rows(predictions))
    style = TableStyle()
    rows = [
        (
            Cell(m.name),
            Cell(m.truth),
            Cell(m.predicted),
            Cell(f"{m.num_wrong} of {m.num_models}"),
            Cell(style.format_number(m.probability)),
        )
        for m in found
    ]
    header = (unit, "true class", "predicted class", "models wrong", "mean p of the true class")
    caption = f"{format_count(len(found), unit)} misclassified by at least one model."
    return ResultTable(caption, header, tuple(rows), tuple(m._asdict() for m in found))


def _summarize_unit(rows: Predictions) -> Misclassification:
    """Summarise the rows of one patient or slide."""
    probabilities = np.array(
        [rows.probabilities[group].mean(axis=0) for group in _group_rows(rows.model)]
    )
    truth = int(rows.label[0])
    predicted = probabilities.argmax(axis=1)
    wrong = Counter(predicted[predicted != truth].tolist())
    return Misclassification(
        name=str(rows.slide_id[0]),
        truth=rows.classes[truth],
        predicted=rows.classes[wrong.most_common(1)[0][0]] if wrong else "",
        num_wrong=wrong.total(),
        num_models=len(probabilities),
        probability=float(probabilities[:, truth].mean()),
    )


def _group_rows(names: npt.NDArray[np.str_]) -> list[npt.NDArray[np.int64]]:
    """Return the rows of each name."""
    _, group = np.unique(names, return_inverse=True)
    order = np.argsort(group, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(group[order])) + 1) if len(names) else []
