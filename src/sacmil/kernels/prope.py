"""PROPE in one pass: reorder the rows, apply the ReLU, rotate."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sacmil.kernels.config import can_run_kernels, use_device_of
from sacmil.kernels.launch import launch
from sacmil.kernels.sac_block import count_programs, next_power_of_two

ROWS, PAIRS = 8, 128
"""Per program."""


def supports(project: nn.Sequential, features: Tensor) -> bool:
    """Whether a fast path exists for a linear layer with this activation."""
    return isinstance(project[1], nn.ReLU | nn.Identity) and can_run_kernels(features)


def project_and_rotate(
    project: nn.Sequential, features: Tensor, order: Tensor, coords: Tensor, scale: float
) -> Tensor:
    """Return projected features in arranged order, rotated by PROPE, (N, dim).

    Args:
        project: a linear layer and its activation.
        features: (N, …), in the order of the bag.
        order: index of the first, second, … instance, (N,).
        coords: (N, 2), in the order of the bag.
        scale: of PROPE.
    """
    c = coords.double().contiguous()
    relu = isinstance(project[1], nn.ReLU)
    with use_device_of(features):
        p = project[0](features)
        theta = _get_theta(p.shape[1] // 2, scale, c.device)
        rotated: Tensor = _PROPEFunction.apply(p, order, c, *c.aminmax(dim=0), theta, relu)  # type: ignore[no-untyped-call]
    return rotated


def _get_theta(pairs: int, scale: float, device: torch.device) -> Tensor:
    """Return Eq. (4) of the paper times the scale; cached, except while a CUDA graph is captured:
    the memory of a graph is freed with it."""
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return (_make_theta if capturing else _cached_theta)(pairs, scale, device)


def _make_theta(pairs: int, scale: float, device: torch.device) -> Tensor:
    last = -4 * (pairs - 1) / pairs
    with torch.inference_mode(mode=False):  # the cached tensor may be used with autograd later
        return scale * torch.logspace(0, last, pairs, dtype=torch.float64, device=device)


_cached_theta = lru_cache(maxsize=16)(_make_theta)


class _PROPEFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor, *given: Any) -> Tensor:
        p = p.contiguous()
        *tensors, ctx.relu = given
        ctx.save_for_backward(p, *tensors)
        h, grid, sizes = torch.empty_like(p), *_choose_launch_sizes(p)
        launch("prope", grid, (p, *tensors, h), (len(p),), RELU=ctx.relu, **sizes)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: Tensor) -> tuple[Tensor | None, ...]:
        p, *tensors = ctx.saved_tensors
        grad_p, grid, sizes = torch.empty_like(p), *_choose_launch_sizes(p)
        given = (grad_h.contiguous(), p, *tensors, grad_p)
        launch("prope_backward", grid, given, (len(p),), RELU=ctx.relu, **sizes)
        return grad_p, None, None, None, None, None, None


def _choose_launch_sizes(p: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    n, dim = p.shape
    pairs = min(PAIRS, next_power_of_two(dim // 2))
    return (count_programs(n, ROWS), count_programs(dim, 2 * pairs)), {
        "D": dim,
        "ROWS": ROWS,
        "PAIRS": pairs,
    }
