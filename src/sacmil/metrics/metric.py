"""A metric: a formula over many resamples at once, and what evaluation must know about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Formula = Callable[[Floats, Floats, Floats], Floats]
"""Of targets (n, T), predictions (n, P) and weights (B, n): the metric of each resample, (B,)."""


@dataclass(frozen=True)
class Metric:
    """A metric of the predictions on one test set.

    A resample is a row of weights: how often each unit is in it. NaN means undefined.
    """

    title: str
    """In tables."""
    formula: Formula
    lower_is_better: bool = False
    is_share: bool = True
    """Whether it can be printed in percent; a number with the unit of the targets cannot."""
    scale: Literal["values", "ranks", "classes"] = "values"
    """What of the predictions it uses, which is what the permutation test swaps: ranks within a
    column make the scales of two models comparable."""
    is_additive: bool = False
    """Whether the difference of two models is a sum over patients, for the permutation test."""
    fold_weight: Literal["", "rows", "pairs"] = ""
    """How folds are weighted in a resample that loses a class of some fold; empty if undefined."""
    has_interval: bool = True
    """Whether resamples are comparable with the data itself."""
    skips_undefined: bool = False
    """Whether resamples in which it is undefined are left out of its interval."""
    for_training: Callable[[Floats], Formula] | None = None
    """Makes the formula from the targets of the training set (m, T), for a metric that needs
    them; they are the targets themselves where no training set is known."""
    fold_size: Callable[[Floats, Floats], Floats] | None = None
    """By which folds are weighted in the mean, of targets (n, T) and weights (B, n): (B,). None
    weights all folds alike. A fold of size zero is left out."""
    makes_blocks: bool = False
    """Whether the formula takes any number of resamples in bounded memory."""
    is_centered: bool = False
    """Whether its interval is moved to the value of the data: repeated rows lower it in small
    folds, as they have less variance. One is the best value."""

    useless_from: float | None = None
    """The value of a constant prediction, if models that are not better deserve a remark."""
    useless_text: str = ""
    """That remark about two models: "neither is better than …"."""

    def is_useless(self, value: float) -> bool:
        """Whether a value is not better than that of a constant prediction."""
        if self.useless_from is None:
            return False
        return value >= self.useless_from if self.lower_is_better else value <= self.useless_from

    def bind(self, training: Floats) -> Metric:
        """Return the metric with the formula for a training set, (m, T)."""
        if self.for_training is None:
            return self
        return replace(self, formula=self.for_training(training), for_training=None)

    def compute(self, targets: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
        """Return the metric of the data itself; NaN where it is undefined.

        Args:
            targets: (n, T).
            predictions: (n, P).
        """
        truth = np.asarray(targets, dtype=np.float64)
        values = np.asarray(predictions, dtype=np.float64)
        formula = self.bind(truth).formula
        return float(formula(truth, values, np.ones((1, len(truth))))[0])
