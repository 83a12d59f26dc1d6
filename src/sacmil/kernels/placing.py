"""From the bag's order to the arranged one, through a ReLU and a rotation, in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sacmil.kernels.switch import fast, kernels, where

ROWS, PAIRS = 16, 64
"""Of a program."""


def serves(project: nn.Sequential, features: Tensor) -> bool:
    """Whether there is a fast path after a linear layer with this activation."""
    return isinstance(project[1], nn.ReLU | nn.Identity) and fast(features)


def place(
    project: nn.Sequential,
    features: Tensor,
    order: Tensor,
    rho: Tensor,
    alpha: Tensor,
    theta: Tensor,
) -> Tensor:
    """Projected features in arranged order, each pair of channels turned by rho theta + alpha.

    Args:
        project: a linear layer and its activation.
        features: (N, …), in the bag's own order.
        order: which instance comes first, second, … (N,).
        rho: (N, 1), float64, in the bag's own order.
        alpha: the same.
        theta: (dim / 2,), float64.
    """
    relu = isinstance(project[1], nn.ReLU)
    with where(features):
        placed: Tensor = _Place.apply(project[0](features), order, rho, alpha, theta, relu)  # type: ignore[no-untyped-call]
    return placed


class _Place(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor, *given: Any) -> Tensor:
        p = p.contiguous()
        *tensors, ctx.relu = given
        ctx.save_for_backward(p, *tensors)
        h, grid, sizes = torch.empty_like(p), *_tiles(p)
        kernels().place[grid](p, *tensors, h, p.shape[0], RELU=ctx.relu, **sizes)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: Tensor) -> tuple[Tensor | None, ...]:
        p, *tensors = ctx.saved_tensors
        grad_p, grid, sizes = torch.empty_like(p), *_tiles(p)
        kernels().place_backward[grid](
            grad_h.contiguous(), p, *tensors, grad_p, p.shape[0], RELU=ctx.relu, **sizes
        )
        return grad_p, None, None, None, None, None


def _tiles(p: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    n, dim = p.shape
    return (-(-n // ROWS), -(-dim // (2 * PAIRS))), {"D": dim, "ROWS": ROWS, "PAIRS": PAIRS}
