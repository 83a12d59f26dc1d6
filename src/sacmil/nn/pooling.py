"""Pooling of instances (N, D): attention (Ilse et al. 2018), pools to one vector, sums by group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}


# --- attention logits -----------------------------------------------------------------------------


class Attention(nn.Module):
    """a = w . act(V h), or gated a = w . (act(V h) * sigmoid(U h)).

    Args:
        dim: width of an instance.
        hidden: width of V h and U h.
        gated: whether there is U, with which the attention can close on an instance.
        branches: number of attentions, for models with one per class.
        bias: of all layers.
        activation: act.
        dropout: on act(V h) and sigmoid(U h).
    """

    def __init__(
        self,
        dim: int,
        hidden: int = 128,
        *,
        gated: bool = False,
        branches: int = 1,
        bias: bool = True,
        activation: str = "tanh",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.value = nn.Linear(dim, hidden, bias=bias)
        self.gate = nn.Linear(dim, hidden, bias=bias) if gated else None
        self.activation = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)
        self.weight = nn.Linear(hidden, branches, bias=bias)

    def forward(self, h: Tensor) -> Tensor:
        """(N, dim) to (N, branches), before any softmax."""
        value = self.dropout(self.activation(self.value(h)))
        if self.gate is not None:
            value = value * self.dropout(self.gate(h).sigmoid())
        logits: Tensor = self.weight(value)
        return logits


# --- sums by group --------------------------------------------------------------------------------


def scatter_sum(owner: Tensor, rows: Tensor, owners: int) -> Tensor:
    """Return the sum of the rows of each owner, (owners, …).

    index_add is not used: onnxruntime runs its exported node in threads that lose sums of rows
    with the same owner.

    Args:
        owner: (N,), the owner of each row.
        rows: (N, …).
        owners: number of owners.
    """
    index = owner.reshape(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
    return rows.new_zeros(owners, *rows.shape[1:]).scatter_add(0, index, rows)


# --- pools to one vector --------------------------------------------------------------------------


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
