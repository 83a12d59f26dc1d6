"""What oracles compute: averages over neighbourhoods, and shares and probabilities of kinds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Floats = NDArray[np.float64]

EM_ITERATIONS = 30


def average_neighborhood(
    positions: NDArray[np.int64], values: Floats, width: float, *, include_self: bool = True
) -> tuple[Floats, Floats]:
    """Average the values around every position, with more weight on nearer ones.

    Args:
        positions: (N, 2) on the patch grid.
        values: (N,).
        width: standard deviation of the Gaussian, in patches.
        include_self: whether a position counts among its own neighbours.

    Returns:
        The averages (N,), and the effective number of positions in each.
    """
    cells = tuple((positions - positions.min(0)).T)
    total = _smooth_values(cells, values, width)
    tissue = _smooth_values(cells, np.ones(len(positions)), width)
    if not include_self:
        center = _smooth_values((np.array([0]), np.array([0])), np.ones(1), width)
        total, tissue = total - center * values, np.maximum(tissue - center, 1e-12)
    return total / tissue, tissue * 4 * np.pi * width**2


def _smooth_values(cells: tuple[NDArray[np.int64], ...], values: Floats, width: float) -> Floats:
    image = np.zeros([int(axis.max()) + 1 for axis in cells])
    image[cells] = values
    smooth: Floats = ndimage.gaussian_filter(image, width, mode="constant")[cells]
    return smooth


def compute_kind_probabilities(features: NDArray[np.floating], means: Floats) -> Floats:
    """Return (N, kinds) probabilities; the share of each kind is estimated from the slide itself.

    Args:
        features: (N, D), noise of variance 1 about the mean of their kind.
        means: (kinds, D).
    """
    fit = np.asarray(features @ means.T.astype(features.dtype) - (means**2).sum(1) / 2, float)
    likelihood = np.exp(fit - fit.max(1, keepdims=True))
    return _compute_posterior(likelihood, estimate_kind_shares(likelihood))


def estimate_kind_shares(likelihood: Floats, weights: Floats | None = None) -> Floats:
    """Return (kinds,) maximum-likelihood shares of the mixture, by expectation–maximisation.

    Args:
        likelihood: (N, kinds), of each cell under each kind, up to a factor per cell.
        weights: (N,), weight of each cell.
    """
    shares = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    for _ in range(EM_ITERATIONS):
        shares = np.average(_compute_posterior(likelihood, shares), axis=0, weights=weights)
    return np.asarray(shares)


def _compute_posterior(likelihood: Floats, prior: Floats) -> Floats:
    weighted = likelihood * prior
    return np.asarray(weighted / np.maximum(weighted.sum(1, keepdims=True), 1e-300))
