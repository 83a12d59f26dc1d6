"""From the bag's order to the arranged one, through a ReLU and a rotation, in one pass."""

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
"""Of a program."""


def supports(project: nn.Sequential, features: Tensor) -> bool:
    """Whether there is a fast path after a linear layer with this activation."""
    return isinstance(project[1], nn.ReLU | nn.Identity) and can_run_kernels(features)


def project_and_rotate(
    project: nn.Sequential, features: Tensor, order: Tensor, coords: Tensor, scale: float
) -> Tensor:
    """Projected features in arranged order, turned by PROPE; (N, dim).

    Args:
        project: a linear layer and its activation.
        features: (N, …), in the bag's own order.
        order: which instance comes first, second, … (N,).
        coords: (N, 2), in the bag's own order.
        scale: of PROPE.
    """
    c = coords.double().contiguous()
    relu = isinstance(project[1], nn.ReLU)
    with use_device_of(features):
        p = project[0](features)
        theta = _get_theta(p.shape[1] // 2, scale, c.device)
        placed: Tensor = _PROPEFunction.apply(p, order, c, *c.aminmax(dim=0), theta, relu)  # type: ignore[no-untyped-call]
    return placed


def _get_theta(pairs: int, scale: float, device: torch.device) -> Tensor:
    """Eq. (4) of the paper, times the scale; made once, but not by a recording, whose memory goes
    with it."""
    recording = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return (_make_theta if recording else _cached_theta)(pairs, scale, device)


def _make_theta(pairs: int, scale: float, device: torch.device) -> Tensor:
    last = -4 * (pairs - 1) / pairs
    with torch.inference_mode(mode=False):  # what is held may be needed for a gradient later
        return scale * torch.logspace(0, last, pairs, dtype=torch.float64, device=device)


_cached_theta = lru_cache(maxsize=16)(_make_theta)


class _PROPEFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor, *given: Any) -> Tensor:
        p = p.contiguous()
        *tensors, ctx.relu = given
        ctx.save_for_backward(p, *tensors)
        h, grid, sizes = torch.empty_like(p), *_choose_launch_sizes(p)
        launch("place", grid, (p, *tensors, h), (len(p),), RELU=ctx.relu, **sizes)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: Tensor) -> tuple[Tensor | None, ...]:
        p, *tensors = ctx.saved_tensors
        grad_p, grid, sizes = torch.empty_like(p), *_choose_launch_sizes(p)
        given = (grad_h.contiguous(), p, *tensors, grad_p)
        launch("place_backward", grid, given, (len(p),), RELU=ctx.relu, **sizes)
        return grad_p, None, None, None, None, None, None


def _choose_launch_sizes(p: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    n, dim = p.shape
    pairs = min(PAIRS, next_power_of_two(dim // 2))
    return (count_programs(n, ROWS), count_programs(dim, 2 * pairs)), {
        "D": dim,
        "ROWS": ROWS,
        "PAIRS": pairs,
    }
