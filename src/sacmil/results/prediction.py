"""A model's answer for one slide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Prediction:
    """A model's answer for one bag, in numpy; instances stand in the bag's own order."""

    slide_id: str
    probabilities: npt.NDArray[np.float64]
    """(C,), summing to one; of class 1 alone for a model with a single output."""
    scores: npt.NDArray[np.float32]
    """(N,), how much each instance matters."""
    class_scores: npt.NDArray[np.float32] | None = None
    """(N, C), where the model has a score per class."""
    classes: tuple[str, ...] | None = None
    """Names of the classes, where the model knows them."""

    @property
    def label(self) -> int:
        """Index of the most probable class."""
        if len(self.probabilities) == 1:
            return int(self.probabilities[0] >= 0.5)
        return int(self.probabilities.argmax())
