"""Ensembles: one model, or the mean of several.

Values are the mean over the members. Scores are the mean of each member's ranks within the slide,
because members' scores have different scales. A single member keeps its own scores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sacmil.errors import ModelFolderError
from sacmil.results.prediction import Prediction


class Member(Protocol):
    """A model that predicts, in torch or exported."""

    @property
    def card(self) -> Any:
        """Its card."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of its classes."""

    @property
    def hash(self) -> str:
        """SHA-256 of its weights."""

    def predict(self, bag: Any) -> Prediction:
        """Return its prediction for a bag."""


M = TypeVar("M", bound=Member)


class Ensemble(Generic[M]):
    """One model, or several whose mean is the prediction.

    Args:
        members: at least one, all with the same classes.
        name: in tables and on pages.
        path: where they were loaded from.

    Raises:
        ModelFolderError: the members have different classes.
    """

    def __init__(self, members: Sequence[M], *, name: str, path: Path) -> None:
        self.members, self.name, self.path = tuple(members), name, path
        classes = {member.classes for member in self.members}
        if len(classes) > 1:
            listed = "; ".join(", ".join(names) for names in sorted(classes))
            raise ModelFolderError(
                f"{path}: its models have different classes ({listed}); give the folder of one "
                "model"
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.members[0].classes

    @property
    def card(self) -> Any:
        """Card of the first member; the others differ in their training data."""
        return self.members[0].card

    @property
    def hash(self) -> str:
        """SHA-256 of the weights; of several members, that of their hashes."""
        return combine_hashes([member.hash for member in self.members])

    def predict(self, bag: Any) -> Prediction:
        """Return the prediction for a bag."""
        found = average_predictions([member.predict(bag) for member in self.members])
        found.check_is_finite()
        return found


def combine_hashes(hashes: Sequence[str]) -> str:
    """Return the hash of a single model, or that of several in their order."""
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def average_predictions(predictions: Sequence[Prediction]) -> Prediction:
    """Return the mean of several predictions for one bag; a single one is returned unchanged."""
    first = predictions[0]
    if len(predictions) == 1:
        return first
    members = np.stack([one.values for one in predictions])
    values = members.mean(axis=0)
    label = int(values.argmax())
    by_class = [one.class_scores for one in predictions if one.class_scores is not None]
    return Prediction(
        first.slide_id,
        first.columns,
        values,
        # of the class that the mean predicts; a single member may predict another
        _average_ranks([_select_scores(one, label) for one in predictions]),
        _average_class_ranks(by_class) if len(by_class) == len(predictions) else None,
        members,
        _find_score_class(predictions, label),
    )


def _select_scores(prediction: Prediction, label: int) -> npt.NDArray[np.float32]:
    scores = prediction.class_scores
    return prediction.scores if scores is None else scores[:, label]


def _find_score_class(predictions: Sequence[Prediction], label: int) -> int | None:
    """Return the class of the mean scores, or None if members score different classes."""
    found = {label if one.class_scores is not None else one.score_class for one in predictions}
    known = found - {None}
    return known.pop() if len(known) == 1 else None


def _average_class_ranks(scores: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    columns = zip(*(one.T for one in scores), strict=True)
    return np.stack([_average_ranks(column) for column in columns], axis=1)


def _average_ranks(scores: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    ranks = np.stack([rank_scores(one) for one in scores])
    return np.asarray(ranks.mean(axis=0), dtype=np.float32)


def rank_scores(scores: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return (N,) the share of the other instances that score lower; ties count half.

    >>> rank_scores([3.0, 1.0, 1.0, 9.0]).round(3).tolist()
    [0.667, 0.167, 0.167, 1.0]
    """
    values = np.asarray(scores, dtype=np.float64)
    if len(values) == 1:
        return np.full(1, 0.5)
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    lower = np.cumsum(count) - count
    ranks: npt.NDArray[np.float64] = (lower + (count - 1) / 2) / (len(values) - 1)
    return ranks[group]
