"""A model's prediction for one slide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from sacmil.errors import InputError

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
        if len(probabilities) == 1:  # a single output scores instances for class 1 only
            values = np.array([1 - probabilities[0], probabilities[0]])
            score_class = None if class_scores is None else 1
            found = cls(slide_id, columns, values, scores, score_class=score_class)
        elif class_scores is None:
            found = cls(slide_id, columns, probabilities, scores)
        else:
            label = int(np.argmax(probabilities))
            own = class_scores[:, label]
            found = cls(slide_id, columns, probabilities, own, class_scores, score_class=label)
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


def select_class_scores(
    scores: npt.NDArray[np.float32], class_scores: npt.NDArray[np.float32] | None, label: int
) -> npt.NDArray[np.float32]:
    """Return (N,) scores for a class; the only scores if there are none per class."""
    if class_scores is None or class_scores.shape[1] == 1:
        return scores
    return class_scores[:, label]
