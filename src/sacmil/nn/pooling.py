"""From instances to one vector: (N, D) to (D,)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class MeanPool(nn.Module):
    """The mean over instances."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) to (D,)."""
        return x.mean(0)


class MaxPool(nn.Module):
    """The largest value of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) to (D,)."""
        return x.amax(0)


class AttentionPool(nn.Module):
    """A mean with learned weights (Ilse et al. 2018): softmax over w . tanh(V x)."""

    def __init__(self, dim: int, hidden: int = 128) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) to (D,)."""
        weights: Tensor = self.score(x).softmax(0)
        return (weights * x).sum(0)


POOLS: dict[str, Callable[[int], nn.Module]] = {
    "mean": lambda dim: MeanPool(),
    "max": lambda dim: MaxPool(),
    "attention": AttentionPool,
}
