"""A model's prediction for one slide."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from sacmil.errors import InputError, ModelFolderError

PROBABILITY_PREFIX = "p_"
"""A column of this name is the probability of the class named after it."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction of a model or an ensemble for one bag; instances are in the bag's order."""

    slide_id: str
    columns: tuple[str, ...]
    """Names of the values, as in predictions.csv: p_<class> for each class."""
    values: npt.NDArray[np.float64]
    """(C,), one per column."""
    scores: npt.NDArray[np.float32]
    """(N,), importance of each instance. Where scores are by class: for the predicted class."""
    class_scores: npt.NDArray[np.float32] | None = None
    """(N, C), where the model has a score for each class."""
    members: npt.NDArray[np.float64] | None = None
    """(M, C), the values of each member of an ensemble; None for a single model."""
    score_class: int | None = None
    """The class of ``scores``; None if one score is for all classes."""

    @classmethod
    def from_output(
        cls,
        slide_id: str,
        probabilities: npt.NDArray[np.float64],
        scores: npt.NDArray[np.float32],
        class_scores: npt.NDArray[np.float32] | None,
        classes: Sequence[str],
    ) -> Self:
        """Make a prediction of a model's output, with the scores of the most probable class.

        The model's own scores may be of another class: for models exported by earlier versions,
        and where probabilities depend on more than the logits.

        Args:
            slide_id: of the bag.
            probabilities: (C,); a single one is that of class 1.
            scores: (N,).
            class_scores: (N, C), or None.
            classes: at least two names.

        Raises:
            InputError: a number is NaN or infinite.
        """
        columns = tuple(PROBABILITY_PREFIX + name for name in classes)
        label = None
        if len(probabilities) == 1:  # a single output scores instances for class 1 only
            probabilities = np.array([1 - probabilities[0], probabilities[0]])
            label, class_scores = None if class_scores is None else 1, None
        elif class_scores is not None:
            label = int(np.argmax(probabilities))
            scores = class_scores[:, label]
        found = cls(slide_id, columns, probabilities, scores, class_scores, score_class=label)
        found.check_is_finite()
        return found

    def check_is_finite(self) -> None:
        """Reject NaN and infinity, which result from features that are far too large."""
        if not np.isfinite(self.values).all():
            found = f"{self.values.tolist()}, which are not probabilities"
        elif not np.isfinite(self.scores).all():
            found = "scores that are NaN or infinite"
        else:
            return
        raise InputError(
            f"{self.slide_id}: the model predicts {found}; expected features like those it was "
            "trained on: look for numbers that are far too large"
        )

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """(C,), by class, summing to one."""
        if not all(column.startswith(PROBABILITY_PREFIX) for column in self.columns):
            raise InputError(
                f"{self.slide_id}: the values are {', '.join(self.columns)}, not probabilities of "
                "classes; use values"
            )
        return self.values

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(column.removeprefix(PROBABILITY_PREFIX) for column in self.columns)

    @property
    def label(self) -> int:
        """Index of the most probable class."""
        return int(self.probabilities.argmax())

    @property
    def predicted_class(self) -> str:
        """Name of the most probable class."""
        return self.classes[self.label]

    @property
    def spread(self) -> npt.NDArray[np.float64] | None:
        """(C,), the standard deviation over the members; None for a single model."""
        return None if self.members is None else self.members.std(axis=0)

    def scores_for(self, label: int) -> npt.NDArray[np.float32]:
        """Return (N,) scores for a class; the model's only scores if it has none per class.

        Raises:
            InputError: there is no such class, or a model with a single output does not score it.
        """
        if isinstance(label, bool) or label not in range(len(self.columns)):
            raise InputError(
                f"there is no class {label!r}; expected the index of one, 0 to "
                f"{len(self.columns) - 1}"
            )
        if self.class_scores is not None:
            return self.class_scores[:, label]
        if self.score_class not in (None, label):
            raise InputError(
                f"there are no scores for class {label}: a model with a single output scores "
                f"instances for class {self.score_class} only; use scores_for({self.score_class})"
            )
        return self.scores


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
