"""Pooling of instances to one vector, (N, D) to (D,)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sacmil.nn.attention import Attention


class Pool(nn.Module, ABC):
    """A weighted sum of instances, whose weights a model can use as scores."""

    @abstractmethod
    def weights(self, x: Tensor) -> Tensor:
        """Return the weight of each instance, (N, 1), or of each of its channels, (N, D)."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) to (D,)."""
        return (self.weights(x) * x).sum(0)


class MeanPool(Pool):
    """The mean over instances."""

    def weights(self, x: Tensor) -> Tensor:
        """Return equal weights."""
        return x.new_full((x.shape[0], 1), 1.0) / x.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) to (D,)."""
        return x.mean(0)


class MaxPool(Pool):
    """The largest value of each channel."""

    def weights(self, x: Tensor) -> Tensor:
        """Return one where a channel is largest, otherwise zero."""
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
        """Return learned weights, (N, 1)."""
        weights: Tensor = self.attention(x).softmax(0)
        return weights


class EvenPool(AttentionPool):
    """Half the mean, half a mean with learned weights: no instance has weight zero."""

    def weights(self, x: Tensor) -> Tensor:
        """Return the weights, (N, 1)."""
        return (super().weights(x) + 1.0 / x.shape[0]) / 2


POOLS: dict[str, Callable[[int], Pool]] = {
    "mean": lambda dim: MeanPool(),
    "max": lambda dim: MaxPool(),
    "attention": AttentionPool,
    "even": EvenPool,
}
