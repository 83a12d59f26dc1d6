"""A model's prediction for one slide."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from sacmil.errors import InputError, ModelFolderError
from sacmil.results.task_card import PROBABILITY_PREFIX


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
    thresholds: tuple[float, ...] | None = None
    """If it is calibrated: from where on class 1, or each label, is predicted; empty for more
    classes. See sacmil.tasks.calibration."""
    scores_add: bool = False
    """Whether scores add to a value or take from it, on the scale of all members."""

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
            is_of_classes = all(name.startswith(PROBABILITY_PREFIX) for name in self.columns)
            kind = "probabilities" if is_of_classes else "finite numbers"
            found = f"{self.values.tolist()}, which are not {kind}"
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
        """Index of the predicted class: the most probable, unless a threshold decides."""
        if self.thresholds:
            return int(self.probabilities[1] >= self.thresholds[0])
        return int(self.probabilities.argmax())

    @property
    def predicted_class(self) -> str:
        """Name of the predicted class."""
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
        """Names of its classes; of other tasks their prediction columns."""

    @property
    def task(self) -> Any:
        """What it predicts."""

    @property
    def hash(self) -> str:
        """SHA-256 of its weights."""

    def predict(self, bag: Any) -> Prediction:
        """Return its prediction for a bag."""


M = TypeVar("M", bound=Member)


class Ensemble(Generic[M]):
    """One model, or several whose mean is the prediction.

    Args:
        members: at least one, all with the same classes, or predictions of one meaning.
        name: in tables and on pages.
        path: where they were loaded from.

    Raises:
        ModelFolderError: the members have different classes, or predict different things.
    """

    def __init__(self, members: Sequence[M], *, name: str, path: Path) -> None:
        self.members, self.name, self.path = tuple(members), name, path
        tasks = [member.task for member in self.members]
        if reason := explain_different_outputs(tasks):
            found = sorted({task.output_description for task in tasks})
            raise ModelFolderError(
                f"{path}: its models {reason} ({'; '.join(found)}); give the folder of one model"
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.members[0].classes

    @property
    def task(self) -> Any:
        """What is predicted; members differ in what they learned from their training sets."""
        return self.members[0].task

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
        predictions = [member.predict(bag) for member in self.members]
        found = average_predictions(predictions, self.find_score_column)
        found.check_is_finite()
        return found

    def find_score_column(self, prediction: Prediction) -> int | None:
        """Return the column of class scores that belongs to what is predicted."""
        column: int | None = self.task.describe(prediction).score_column
        return column


def explain_different_outputs(tasks: Sequence[Any]) -> str:
    """Return why predictions of these tasks have no mean, after a plural noun; or nothing."""
    if len({task.output_description for task in tasks}) < 2:
        return ""
    if all(task.has_classes for task in tasks):
        return "have different classes"
    if len({task.card.description for task in tasks}) > 1:
        return "predict different targets"
    return "make predictions that differ in meaning"


def combine_hashes(hashes: Sequence[str]) -> str:
    """Return the hash of a single model, or that of several in their order."""
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def average_predictions(
    predictions: Sequence[Prediction],
    find_column: Callable[[Prediction], int | None] | None = None,
) -> Prediction:
    """Return the mean of several predictions for one bag; a single one is returned unchanged.

    Calibrated predictions have the mean of their thresholds, too.

    Args:
        predictions: of one bag.
        find_column: returns the column of class scores that belongs to the mean; that of the
            highest value if not given.
    """
    first = predictions[0]
    if len(predictions) == 1:
        return first
    members = np.stack([one.values for one in predictions])
    values, thresholds = members.mean(axis=0), _average_thresholds(predictions)
    label = int(values.argmax())
    if find_column is not None:
        mean = replace(first, values=values, members=members, thresholds=thresholds)
        label = find_column(mean) or 0
    by_class = [one.class_scores for one in predictions if one.class_scores is not None]
    scores_add = all(one.scores_add for one in predictions)
    average = _average_columns if scores_add else _average_ranks
    return Prediction(
        first.slide_id,
        first.columns,
        values,
        # of the class that the mean predicts; a single member may predict another
        average([_select_scores(one, label)[:, None] for one in predictions])[:, 0],
        average(by_class) if len(by_class) == len(predictions) else None,
        members,
        _find_score_class(predictions, label),
        thresholds,
        scores_add,
    )


def _average_thresholds(predictions: Sequence[Prediction]) -> tuple[float, ...] | None:
    found = [one.thresholds for one in predictions if one.thresholds is not None]
    return tuple(np.mean(found, axis=0).tolist()) if len(found) == len(predictions) else None


def _select_scores(prediction: Prediction, label: int) -> npt.NDArray[np.float32]:
    scores = prediction.class_scores
    return prediction.scores if scores is None else scores[:, label]


def _find_score_class(predictions: Sequence[Prediction], label: int) -> int | None:
    """Return the class of the mean scores, or None if members score different classes."""
    found = {label if one.class_scores is not None else one.score_class for one in predictions}
    known = found - {None}
    return known.pop() if len(known) == 1 else None


def _average_columns(scores: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    return np.asarray(np.mean(scores, axis=0, dtype=np.float64), dtype=np.float32)


def _average_ranks(scores: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return the mean over the members of ranks within each column of scores (N, C)."""
    return _average_columns([np.apply_along_axis(rank_scores, 0, one) for one in scores])


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
