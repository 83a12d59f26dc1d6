"""Who is misclassified: patients, or slides where those are the unit, that models get wrong."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.evaluation.layouts import Cell, Table
from sacmil.evaluation.tables import Style, count, of_test
from sacmil.evaluation.units import to_units, unit_of
from sacmil.results import Predictions


class Mistake(NamedTuple):
    """A patient or slide that at least one model gets wrong."""

    name: str
    truth: str
    taken_for: str
    """By most of the models that are wrong."""
    wrong: int
    """How many models."""
    models: int
    """Of how many that were tested on it."""
    probability: float
    """Of the true class, the mean over models."""


def mistakes(predictions: Predictions) -> list[Mistake]:
    """Everyone misclassified, those most models get wrong first.

    A model's answer is the mean of its probabilities over seeds, and over folds where
    cross-validation was repeated.
    """
    units = to_units(of_test(predictions))
    found = [_mistake(units.where(rows)) for rows in _groups(units.slide_id)]
    wrong = [mistake for mistake in found if mistake.wrong]
    return sorted(wrong, key=lambda m: (-m.wrong / m.models, m.probability, m.name))


def mistake_table(predictions: Predictions) -> Table:
    """The mistakes as a table; how many they are stands in its caption."""
    found, unit = mistakes(predictions), unit_of(of_test(predictions))
    style = Style()
    rows = [
        (
            Cell(m.name),
            Cell(m.truth),
            Cell(m.taken_for),
            Cell(f"{m.wrong} of {m.models}"),
            Cell(style.number(m.probability)),
        )
        for m in found
    ]
    header = (unit, "true class", "taken for", "models wrong", "mean p of the true class")
    caption = f"{count(len(found), unit)} misclassified by at least one model."
    return Table(caption, header, tuple(rows), tuple(m._asdict() for m in found))


def _mistake(rows: Predictions) -> Mistake:
    """Of the rows of one patient or slide."""
    answers = np.array([rows.probabilities[group].mean(axis=0) for group in _groups(rows.model)])
    truth = int(rows.label[0])
    taken = answers.argmax(axis=1)
    wrong = Counter(taken[taken != truth].tolist())
    return Mistake(
        name=str(rows.slide_id[0]),
        truth=rows.classes[truth],
        taken_for=rows.classes[wrong.most_common(1)[0][0]] if wrong else "",
        wrong=wrong.total(),
        models=len(answers),
        probability=float(answers[:, truth].mean()),
    )


def _groups(names: npt.NDArray[np.str_]) -> list[npt.NDArray[np.int64]]:
    """Rows of each name."""
    _, place = np.unique(names, return_inverse=True)
    order = np.argsort(place, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(place[order])) + 1) if len(names) else []
