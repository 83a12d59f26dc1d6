"""Layers and habits that several models share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ACTIVATIONS: dict[str, type[nn.Module]] = {"none": nn.Identity, "relu": nn.ReLU, "gelu": nn.GELU}


def make_projection(
    in_dim: int, hidden: int | None, *, activation: str = "relu", dropout: float = 0.0
) -> nn.Module:
    """Return a layer from (N, in_dim) to (N, hidden); the identity if hidden is None."""
    if hidden is None:
        return nn.Identity()
    return nn.Sequential(nn.Linear(in_dim, hidden), ACTIVATIONS[activation](), nn.Dropout(dropout))


def init_linear_(
    model: nn.Module, init_weight: Callable[[Tensor], Tensor] = nn.init.xavier_normal_
) -> None:
    """Initialise linear layers: weights as given, by default Glorot's normal ones; zero biases."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            init_weight(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def embed_in_order(
    project: nn.Module, position: nn.Module, features: Tensor, coords: Tensor, order: Tensor
) -> Tensor:
    """Project features (N, in_dim) to (N, dim), in arranged order, with their positions."""
    h: Tensor = position(project(features).index_select(0, order), coords.index_select(0, order))
    return h


T = TypeVar("T")


def recompute_in_backward(function: Callable[..., T], *arguments: object) -> T:
    """Return ``function(*arguments)``; the recomputation uses the same random numbers.

    Without gradients, and in an export, the function is simply called.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return function(*arguments)
    value: T = checkpoint(function, *arguments, use_reentrant=False)
    return value
