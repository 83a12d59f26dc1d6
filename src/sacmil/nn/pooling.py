"""From instances to one vector: (N, D) to (D,)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sacmil.nn.attention import Attention


class Pool(nn.Module, ABC):
    """A sum of instances by weights, which are a model's to look at."""

    @abstractmethod
    def weights(self, x: Tensor) -> Tensor:
        """How much of each instance, or of each of its channels: (N, 1) or (N, D)."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) to (D,)."""
        return (self.weights(x) * x).sum(0)


class MeanPool(Pool):
    """The mean over instances."""

    def weights(self, x: Tensor) -> Tensor:
        """All alike."""
        return x.new_full((x.shape[0], 1), 1.0) / x.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) to (D,)."""
        return x.mean(0)


class MaxPool(Pool):
    """The largest value of each channel."""

    def weights(self, x: Tensor) -> Tensor:
        """One where a channel is largest."""
        return torch.zeros_like(x).scatter(0, x.argmax(0)[None], 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) to (D,)."""
        return x.amax(0)


class AttentionPool(Pool):
    """A mean with learned weights."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention = Attention(dim)

    def weights(self, x: Tensor) -> Tensor:
        """(N, 1), learned."""
        weights: Tensor = self.attention(x).softmax(0)
        return weights


class EvenPool(AttentionPool):
    """Half the mean, half a mean with learned weights: a few are found soon, none is lost."""

    def weights(self, x: Tensor) -> Tensor:
        """(N, 1)."""
        return (super().weights(x) + 1.0 / x.shape[0]) / 2


POOLS: dict[str, Callable[[int], Pool]] = {
    "mean": lambda dim: MeanPool(),
    "max": lambda dim: MaxPool(),
    "attention": AttentionPool,
    "even": EvenPool,
}
