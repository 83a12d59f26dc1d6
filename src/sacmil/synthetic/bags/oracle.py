"""Oracles: scores computed with knowledge of how the slides were made.

There are two oracles. Both use the task's own statistic (``SyntheticTask.score_classes``):

* ``"truth"`` knows the kind of every cell. Its errors come from the randomness of slides only.
* ``"features"`` sees the features, and knows the mean of each kind and the noise. It converts
  them to probabilities of the kinds. A model that has learned everything about single cells and
  about the task could reach this.

The statistic is not the exact likelihood ratio, except for the true kinds of ``subtype``. So the
oracle is a reference for comparison, not a bound on every method.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from sacmil.bag import Bag
from sacmil.synthetic.bags.kind_probabilities import compute_kind_probabilities
from sacmil.synthetic.bags.labeled_bag import (
    SyntheticBagSettings,
    draw_truth,
    make_labeled_bag,
    make_labeled_slide,
    make_prototypes,
)

OracleInput = Literal["features", "truth"]
CHANCE_AUC = 0.5
"""The AUC of random scores."""


def compute_oracle_scores(
    bag: Bag, settings: SyntheticBagSettings, seed: int
) -> NDArray[np.float64]:
    """Return (C,) scores of the oracle that sees the features; higher is more likely.

    Args:
        bag: of a synthetic cohort.
        settings: of that cohort.
        seed: of that cohort; it determines the mean feature of each kind of cell.
    """
    positions = np.round(bag.patch_coords).astype(np.int64)
    return settings.task.score_classes(
        positions, compute_kind_probabilities(bag.features, make_prototypes(settings, seed))
    )


def compute_oracle_auc(
    settings: SyntheticBagSettings,
    slides: int,
    seed: int,
    *,
    oracle_input: OracleInput = "features",
) -> float:
    """Return the oracle's AUC over a cohort; for several classes, the mean one-vs-rest AUC.

    NaN if a class has no slide.

    Args:
        settings: of the cohort.
        slides: number of slides; with a hundred, the AUC is known to about 0.03.
        seed: of the cohort.
        oracle_input: the features, or the true kinds of the cells.
    """
    labels = [make_labeled_slide(settings, seed, number).label for number in range(slides)]
    score = _score_by_truth if oracle_input == "truth" else _score_by_features
    scores = [score(settings, seed, number, label) for number, label in enumerate(labels)]
    return _macro_auc(np.array(labels), np.array(scores))


def _score_by_truth(
    settings: SyntheticBagSettings, seed: int, number: int, label: int
) -> NDArray[np.float64]:
    truth = draw_truth(settings, seed, number, label)
    return settings.task.score_classes(
        truth.positions, np.eye(len(settings.task.kinds))[truth.kinds]
    )


def _score_by_features(
    settings: SyntheticBagSettings, seed: int, number: int, label: int
) -> NDArray[np.float64]:
    return compute_oracle_scores(
        make_labeled_bag(settings, seed, number, label=label).bag, settings, seed
    )


def _macro_auc(labels: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
    """Return the mean over classes of the one-vs-rest area under the ROC curve."""
    areas = []
    for label in range(scores.shape[1]):
        own = labels == label
        wins = rankdata(scores[:, label])[own].sum() - own.sum() * (own.sum() + 1) / 2
        pairs = own.sum() * (~own).sum()
        areas.append(wins / pairs if pairs else np.nan)
    return float(np.mean(areas))
