"""The best that can be hoped for: scores by one who knows how the slides were made.

Two oracles, both with the task's own statistic of the places (``Task.evidence``):

* ``"truth"`` knows the kind of every cell. What it misses lies in how slides are drawn.
* ``"features"`` sees the features, and knows what each kind looks like on average and how wide
  the noise is; it turns them into probabilities of the kinds. What a model that has learnt
  everything about single cells and about the task could reach.

The statistic is not the exact likelihood ratio, except for the true kinds of ``subtype``: a
ceiling to measure against, not a bound that no method can pass.
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
"""The AUC of one who knows nothing."""


def compute_oracle_scores(
    bag: Bag, settings: SyntheticBagSettings, seed: int
) -> NDArray[np.float64]:
    """(C,), what the oracle that sees the features thinks of a slide; higher is likelier.

    Args:
        bag: of a synthetic cohort.
        settings: of that cohort.
        seed: of that cohort: gives what each kind of cell looks like.
    """
    places = np.round(bag.patch_coords).astype(np.int64)
    return settings.task.score_classes(
        places, compute_kind_probabilities(bag.features, make_prototypes(settings, seed))
    )


def compute_oracle_auc(
    settings: SyntheticBagSettings,
    slides: int,
    seed: int,
    *,
    oracle_input: OracleInput = "features",
) -> float:
    """The oracle's AUC over a cohort; of several classes, the mean of each against the rest.

    NaN where a class has no slide.

    Args:
        settings: of the cohort.
        slides: how many; a hundred know the ceiling to about 0.03.
        seed: of the cohort.
        oracle_input: the features, or the true kinds of the cells.
    """
    labels = [make_labeled_slide(settings, seed, number).label for number in range(slides)]
    look = _score_by_truth if oracle_input == "truth" else _score_by_features
    scores = [look(settings, seed, number, label) for number, label in enumerate(labels)]
    return _macro_auc(np.array(labels), np.array(scores))


def _score_by_truth(
    settings: SyntheticBagSettings, seed: int, number: int, label: int
) -> NDArray[np.float64]:
    drawn = draw_truth(settings, seed, number, label)
    return settings.task.score_classes(
        drawn.positions, np.eye(len(settings.task.kinds))[drawn.kinds]
    )


def _score_by_features(
    settings: SyntheticBagSettings, seed: int, number: int, label: int
) -> NDArray[np.float64]:
    return compute_oracle_scores(
        make_labeled_bag(settings, seed, number, label=label).bag, settings, seed
    )


def _macro_auc(labels: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
    """The mean over classes of the area under the ROC curve, each against the rest."""
    areas = []
    for label in range(scores.shape[1]):
        own = labels == label
        wins = rankdata(scores[:, label])[own].sum() - own.sum() * (own.sum() + 1) / 2
        pairs = own.sum() * (~own).sum()
        areas.append(wins / pairs if pairs else np.nan)
    return float(np.mean(areas))
