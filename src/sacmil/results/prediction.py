"""A model's prediction for one slide."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from sacmil.errors import InputError


@dataclass(frozen=True, eq=False)
class Prediction:
    """A model's prediction for one bag, in numpy; instances are in the order of the bag."""

    slide_id: str
    probabilities: npt.NDArray[np.float64]
    """(C,), summing to one; only that of class 1 for a model with a single output."""
    scores: npt.NDArray[np.float32]
    """(N,), importance of each instance; for the predicted class, if scores are per class."""
    class_scores: npt.NDArray[np.float32] | None = None
    """(N, C), where the model has a score per class."""
    classes: tuple[str, ...] | None = None
    """Names of the classes, where the model knows them."""

    @classmethod
    def from_output(
        cls,
        slide_id: str,
        probabilities: npt.NDArray[np.float64],
        scores: npt.NDArray[np.float32],
        class_scores: npt.NDArray[np.float32] | None,
        classes: tuple[str, ...] | None,
    ) -> Self:
        """Make a prediction of a model's output, with the scores of the most probable class.

        The model's own scores may be of another class: for models exported by earlier versions,
        and where probabilities depend on more than the logits.

        Raises:
            InputError: a number is NaN or infinite.
        """
        found = cls(slide_id, probabilities, scores, class_scores, classes)
        found.check_is_finite()
        return replace(found, scores=select_class_scores(scores, class_scores, found.label))

    def check_is_finite(self) -> None:
        """Reject NaN and infinity, which result from features that are far too large."""
        given = self.probabilities
        if not np.isfinite(given).all():
            found = f"{given.tolist()}, which are not probabilities"
        elif not np.isfinite(self.scores).all():
            found = "scores that are NaN or infinite"
        else:
            return
        raise InputError(
            f"{self.slide_id}: the model predicts {found}; expected features like those it was "
            "trained on: look for numbers that are far too large"
        )

    @property
    def label(self) -> int:
        """Index of the most probable class."""
        return most_probable_class(self.probabilities)

    @property
    def score_class(self) -> int | None:
        """The class of ``scores``; None if one score is for all classes."""
        if self.class_scores is None:
            return None
        # A single output scores instances for class 1 only, whatever is predicted.
        return 1 if self.class_scores.shape[1] == 1 else self.label

    def scores_for(self, label: int) -> npt.NDArray[np.float32]:
        """Return (N,) scores for a class; the model's only scores if it has none per class.

        Raises:
            InputError: there is no such class, or a model with a single output does not score it.
        """
        count = max(2, len(self.probabilities))
        if isinstance(label, bool) or label not in range(count):
            raise InputError(
                f"there is no class {label!r}; expected the index of one, 0 to {count - 1}"
            )
        if self.class_scores is not None and self.class_scores.shape[1] == 1 and label == 0:
            raise InputError(
                "there are no scores for class 0: a model with a single output scores instances "
                "for class 1 only; use scores_for(1)"
            )
        return select_class_scores(self.scores, self.class_scores, label)


def select_class_scores(
    scores: npt.NDArray[np.float32], class_scores: npt.NDArray[np.float32] | None, label: int
) -> npt.NDArray[np.float32]:
    """Return (N,) scores for a class; the only scores if there are none per class."""
    if class_scores is None or class_scores.shape[1] == 1:
        return scores
    return class_scores[:, label]


def most_probable_class(probabilities: npt.NDArray[np.float64]) -> int:
    """Return the index of the most probable class; a single number is that of class 1."""
    if len(probabilities) == 1:
        return int(probabilities[0] >= 0.5)
    return int(probabilities.argmax())
