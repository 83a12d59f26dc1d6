"""Figures of merit over the slides of a test set."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata


def accuracy(labels: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Share of slides whose predicted class is the true one."""
    return float(np.mean(np.asarray(labels) == np.asarray(predicted)))


def auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """Area under the ROC curve of a binary label: ties count half; NaN with one class only.

    >>> auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    0.75
    """
    positive = np.asarray(labels).astype(bool)
    wins = rankdata(scores)[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
    pairs = positive.sum() * (~positive).sum()
    return float(wins / pairs) if pairs else float("nan")
