"""How common every kind of cell is, and what each cell probably is, where the kinds are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sacmil.synthetic.bags.task import KindProbabilities

EM_ITERATIONS = 30


def compute_kind_probabilities(
    features: NDArray[np.floating], means: NDArray[np.float64]
) -> KindProbabilities:
    """(N, kinds), probabilities of the kinds; how common each is comes from the slide itself.

    Args:
        features: (N, D), noise of variance 1 about the mean of their kind.
        means: (kinds, D).
    """
    fit = np.asarray(features @ means.T.astype(features.dtype) - (means**2).sum(1) / 2, float)
    likelihood = np.exp(fit - fit.max(1, keepdims=True))
    return _compute_posterior(likelihood, estimate_kind_shares(likelihood))


def estimate_kind_shares(
    likelihood: NDArray[np.float64], weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """(kinds,), the mixture that makes the cells likeliest, by expectation and maximisation.

    Args:
        likelihood: (N, kinds), of each cell under each kind, up to a factor of the cell's own.
        weights: (N,), how much each cell counts.
    """
    found = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    for _ in range(EM_ITERATIONS):
        found = np.average(_compute_posterior(likelihood, found), axis=0, weights=weights)
    return np.asarray(found)


def _compute_posterior(
    likelihood: NDArray[np.float64], prior: NDArray[np.float64]
) -> KindProbabilities:
    weighed = likelihood * prior
    return np.asarray(weighed / np.maximum(weighed.sum(1, keepdims=True), 1e-300))
