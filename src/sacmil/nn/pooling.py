"""From instances to one vector: (N, D) to (D,)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from sacmil.nn.attention import Attention


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
    """A mean with learned weights."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attention = Attention(dim)

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) to (D,)."""
        weights: Tensor = self.attention(x).softmax(0)
        return (weights * x).sum(0)


POOLS: dict[str, Callable[[int], nn.Module]] = {
    "mean": lambda dim: MeanPool(),
    "max": lambda dim: MaxPool(),
    "attention": AttentionPool,
}
