"""Models without a network: statistics of a bag, and logistic or Cox regression on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from sacmil.models import MILModel, Output, Sample

NEIGHBORS = 10
PENALTY = 1.0
"""Of the squared weights, as in scikit-learn's default."""
_ROWS = 1024
"""Cells whose distances to all others are in memory at a time."""

Floats = npt.NDArray[np.float64]


class BaselineModel(MILModel):
    """Answers without training by gradients."""

    def fit_to(self, samples: Iterable[Sample]) -> None:
        """Learn from a training set."""


class Darkness(BaselineModel):
    """The darker a tile, the higher its score; the answer is the mean over the bag."""

    name = "darkness"

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """features (N, 3): colours."""
        scores = -features.float().mean(1)
        darkness = scores.mean()
        return Output(torch.stack([-darkness, darkness]), scores)


class Composition(BaselineModel):
    """Regression on the mean of the features: logistic for two classes, Cox's for times."""

    name = "composition"
    width_power: ClassVar[int] = 1
    mean: Tensor
    scale: Tensor

    def __init__(self, *, in_dim: int, num_classes: int) -> None:
        super().__init__(in_dim, num_classes)
        width = sum(in_dim ** (n + 1) for n in range(self.width_power))
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(width, dtype=torch.float64))
        self.head = nn.Linear(width, 1).double().requires_grad_(requires_grad=False)

    def describe(self, features: Tensor, coords: Tensor) -> Tensor:
        """Return the statistics of a bag."""
        return features.double().mean(0)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Every instance has the same score."""
        found = (self.describe(features, coords) - self.mean) / self.scale
        logit = self.head(found)[0].float()
        logits = logit[None] if self.num_classes == 1 else torch.stack([-logit / 2, logit / 2])
        return Output(logits, torch.zeros_like(features[:, 0]))

    @torch.no_grad()
    def fit_to(self, samples: Iterable[Sample]) -> None:
        """Fit the regression; the penalty is that of scikit-learn's default."""
        pairs = [(self.describe(one.features, one.coords).cpu(), one.target) for one in samples]
        found = torch.stack([values for values, _ in pairs])
        targets = np.array([target.cpu().numpy() for _, target in pairs])
        self.mean.copy_(found.mean(0))
        self.scale.copy_(found.std(0, correction=0).clamp(min=1e-9))
        x = ((found - self.mean.cpu()) / self.scale.cpu()).numpy()
        if self.num_classes == 1:
            weights = np.append(0.0, fit_cox(x, targets[:, 0], targets[:, 1]))
        else:
            weights = fit_logistic(x, targets)
        self.head.weight.copy_(torch.from_numpy(weights[None, 1:]))
        self.head.bias.copy_(torch.from_numpy(weights[:1]))


class NeighborMixing(Composition):
    """Regression on composition, and on what the neighbors of each kind of cell are."""

    name = "neighbor_mixing"
    width_power = 2

    def describe(self, features: Tensor, coords: Tensor) -> Tensor:
        """Return means, and the mean product of each feature with those of the neighbors."""
        values = features.double()
        around = average_neighbors(values, coords.double())
        mixing = values.t() @ around / len(values)
        return torch.cat([values.mean(0), mixing.flatten()])


def average_neighbors(values: Tensor, coords: Tensor) -> Tensor:
    """Return the mean of the values (N, F) of the nearest other instances, (N, F)."""
    count = min(NEIGHBORS, len(values) - 1)
    if not count:
        return values
    parts = []
    for start in range(0, len(values), _ROWS):
        rows = torch.arange(start, min(start + _ROWS, len(values)), device=values.device)
        distance = torch.cdist(coords[rows], coords)
        distance[torch.arange(len(rows), device=rows.device), rows] = torch.inf
        parts.append(values[distance.topk(count, largest=False).indices].mean(1))
    return torch.cat(parts)


def fit_logistic(x: Floats, y: npt.NDArray[np.int64]) -> Floats:
    """Return bias and weights of a penalized logistic regression of standardized columns."""
    signs = 2.0 * y - 1

    def compute_loss(weights: Floats) -> tuple[float, Floats]:
        margin = signs * (weights[0] + x @ weights[1:])
        slope = -signs / (1 + np.exp(np.clip(margin, -500, 500)))
        loss = np.logaddexp(0, -margin).sum() + PENALTY / 2 * np.square(weights[1:]).sum()
        gradient = np.concatenate([[slope.sum()], x.T @ slope + PENALTY * weights[1:]])
        return float(loss), gradient

    start = np.zeros(x.shape[1] + 1)
    found: Any = minimize(compute_loss, start, jac=True, method="L-BFGS-B", tol=1e-10)
    return np.asarray(found.x, dtype=np.float64)


def fit_cox(x: Floats, times: Floats, events: Floats) -> Floats:
    """Return weights of a penalized Cox regression of standardized columns (Breslow's ties)."""
    order = np.argsort(-times, kind="stable")
    x, times, events = x[order], times[order], events[order]
    last = np.searchsorted(-times, -times, side="right") - 1  # of those at risk, ties included

    def compute_loss(weights: Floats) -> tuple[float, Floats]:
        risk = x @ weights
        largest = risk.max()
        exp = np.exp(risk - largest)
        total, weighted = np.cumsum(exp)[last], np.cumsum(exp[:, None] * x, axis=0)[last]
        loss = (events * (np.log(total) + largest - risk)).sum()
        gradient = (events[:, None] * (weighted / total[:, None] - x)).sum(0)
        penalty = PENALTY / 2 * np.square(weights).sum()
        return float(loss + penalty), gradient + PENALTY * weights

    found: Any = minimize(compute_loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B")
    return np.asarray(found.x, dtype=np.float64)


BASELINES: dict[str, type[BaselineModel]] = {
    model.name: model for model in (Darkness, Composition, NeighborMixing)
}
"""Not in the zoo."""
