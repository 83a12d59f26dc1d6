"""Estimate the share of every kind of cell, and the kind of each cell, given the kinds' means."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sacmil.synthetic.bags.task import KindProbabilities

EM_ITERATIONS = 30


def compute_kind_probabilities(
    features: NDArray[np.floating], means: NDArray[np.float64]
) -> KindProbabilities:
    """Return (N, kinds) probabilities; the share of each kind is estimated from the slide itself.

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
    """Return (kinds,) maximum-likelihood shares of the mixture, by expectation–maximisation.

    Args:
        likelihood: (N, kinds), of each cell under each kind, up to a factor per cell.
        weights: (N,), weight of each cell.
    """
    shares = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    for _ in range(EM_ITERATIONS):
        shares = np.average(_compute_posterior(likelihood, shares), axis=0, weights=weights)
    return np.asarray(shares)


def _compute_posterior(
    likelihood: NDArray[np.float64], prior: NDArray[np.float64]
) -> KindProbabilities:
    weighted = likelihood * prior
    return np.asarray(weighted / np.maximum(weighted.sum(1, keepdims=True), 1e-300))
