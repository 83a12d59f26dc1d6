"""A SAC block in two matrix products and two fused passes: norm with shift, GELU with unshift.

Normed, shifted and activated rows exist only as operands of a product. Saved for the gradient are
the block's input, two statistics per row, and the first product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sacmil.kernels.config import can_run_kernels, use_device_of
from sacmil.kernels.launch import launch

MAX_CHANNELS = 4096
"""Channels of a row that one program can hold."""
MAX_PROGRAMS = 4096
"""Programs that sum over instances; their partial sums are added at the end."""


class FoldShift(NamedTuple):
    """How folds are shifted, as arguments of the kernels."""

    n: int
    ring: int
    step: int
    absorb: bool
    k: int

    @classmethod
    def for_block(cls, block: Any, n: int) -> FoldShift:
        """Return the shift of a SACBlock for a bag of n; no ring is longer than the bag."""
        ring, step = block.k ** (block.level + 1), block.k**block.level
        if ring > n:
            ring, step = n + 1, step % n
        return cls(n, ring, step, block.tail == "absorb", block.k)

    def choose_program_sizes(self, dim: int, elements: int = 2048) -> dict[str, Any]:
        """Return the constants of a program that processes whole rows of about ``elements``."""
        folds, width = next_power_of_two(self.k), next_power_of_two(dim // self.k)
        rows = max(1, elements // (folds * width))
        model_sizes = {"D": dim, "K": self.k, "ABSORB": self.absorb}
        return model_sizes | {"ROWS": rows, "FOLDS": folds, "WIDTH": width}


def supports(block: Any, x: Tensor) -> bool:
    """Whether the kernels support a SACBlock with these options, and x."""
    dim = x.shape[1]
    return (
        has_standard_options(block, dim)
        and dim <= MAX_CHANNELS
        and _is_autocast_dtype(x)
        and can_run_kernels(x)
    )


def has_standard_options(block: Any, dim: int) -> bool:
    """Whether a SACBlock has the options that the fast paths support."""
    layers = isinstance(block.act, nn.GELU) and isinstance(block.decay, nn.Identity)
    return layers and block.residual and dim % block.k == 0


def _is_autocast_dtype(x: Tensor) -> bool:
    """Whether matrix products keep the dtype of x; autocast may change it."""
    device = x.device.type
    return not torch.is_autocast_enabled(device) or torch.get_autocast_dtype(device) == x.dtype


def correlate(block: Any, x: Tensor) -> Tensor:
    """Return x + W2 unshift(GELU(W1 shift(LN(x)))), with a SACBlock's parameters."""
    shift = FoldShift.for_block(block, len(x))
    with use_device_of(x):
        out: Tensor = _SACBlockFunction.apply(
            x, *get_parameters(block, x.dtype), block.norm.eps, shift
        )  # type: ignore[no-untyped-call]
    return out


def get_parameters(block: Any, dtype: torch.dtype) -> list[Tensor]:
    """Return weight and bias of the norm, of W1 and of W2."""
    layers = (block.norm, block.w1, block.w2)
    held = [each for layer in layers for each in (layer.weight, layer.bias)]
    return held if all(each.dtype == dtype for each in held) else [each.to(dtype) for each in held]


class _SACBlockFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Any) -> Tensor:
        weight, bias, w1, b1, w2, b2, eps, shift = given
        x = x.contiguous()
        statistics = row_statistics(x, eps)
        u = torch.addmm(b1, norm_shift(x, statistics, weight, bias, shift), w1.t())
        ctx.save_for_backward(x, statistics, u, weight, bias, w1, w2)
        ctx.shift = shift
        return torch.addmm(b2, gelu_unshift(u, shift), w2.t()).add_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, statistics, u, weight, bias, w1, w2 = ctx.saved_tensors
        shift, grad_out = ctx.shift, grad_out.contiguous()
        grad_w2 = grad_out.t() @ gelu_unshift(u, shift)
        grad_u, grad_b1 = gelu_unshift_backward(u, grad_out @ w2, shift)
        grad_w1 = grad_u.t() @ norm_shift(x, statistics, weight, bias, shift)
        grad_y = grad_u @ w1
        del grad_u
        grad_x, sums = norm_shift_backward(x, statistics, weight, grad_y, grad_out, shift)
        grad_weight, grad_bias, grad_b2 = sums
        return grad_x, grad_weight, grad_bias, grad_w1, grad_b1, grad_w2, grad_b2, None, None


def row_statistics(x: Tensor, eps: float, carried_bias: Tensor | None = None) -> Tensor:
    """Return mean and inverse deviation of each row of x, with the carried bias added.

    (N,), int64 that packs the two float32 values.
    """
    n, dim = x.shape
    statistics = x.new_empty(n, dtype=torch.int64)
    columns = next_power_of_two(dim)
    rows = max(1, 4096 // columns)
    sizes = {"D": dim, "CARRIED": carried_bias is not None, "ROWS": rows, "COLUMNS": columns}
    launch(
        "row_statistics",
        (count_programs(n, rows),),
        (x, carried_bias, statistics),
        (n, eps),
        **sizes,
    )
    return statistics


def norm_shift(
    x: Tensor,
    statistics: Tensor,
    weight: Tensor,
    bias: Tensor,
    shift: FoldShift,
    carried_bias: Tensor | None = None,
) -> Tensor:
    """Return shift(LN(x)), (N, D), with the carried bias added to x."""
    y, sizes = torch.empty_like(x), shift.choose_program_sizes(x.shape[1])
    tensors = (x, carried_bias, statistics, weight, bias, y)
    grid = (count_programs(shift.n, sizes["ROWS"]),)
    launch("norm_shift", grid, tensors, shift[:3], CARRIED=carried_bias is not None, **sizes)
    return y


def norm_shift_backward(
    x: Tensor,
    statistics: Tensor,
    weight: Tensor,
    grad_y: Tensor,
    grad_out: Tensor,
    shift: FoldShift,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x (with grad_out of the residual), and of weight, bias and output."""
    dim, grad_x = x.shape[1], torch.empty_like(x)
    sizes = shift.choose_program_sizes(dim, 1024)
    blocks = count_programs(shift.n, sizes["ROWS"])
    sums = x.new_empty(min(blocks, MAX_PROGRAMS), 3, dim, dtype=torch.float32)
    tensors = (x, statistics, weight, grad_y, grad_out, grad_x, sums)
    launch("norm_shift_backward", (len(sums),), tensors, (*shift[:3], blocks), **sizes)
    return grad_x, sums.sum(0).to(weight.dtype)


def gelu_unshift(u: Tensor, shift: FoldShift, out: Tensor | None = None) -> Tensor:
    """Return unshift(GELU(u)), (N, D)."""
    v, sizes = torch.empty_like(u) if out is None else out, shift.choose_program_sizes(u.shape[1])
    launch("gelu_unshift", (count_programs(shift.n, sizes["ROWS"]),), (u, v), shift[:3], **sizes)
    return v


def gelu_unshift_backward(u: Tensor, grad_v: Tensor, shift: FoldShift) -> tuple[Tensor, Tensor]:
    """Return the gradient of u, and its sum over instances."""
    grad_u, sizes = torch.empty_like(u), shift.choose_program_sizes(u.shape[1], 1024)
    blocks = count_programs(shift.n, sizes["ROWS"])
    sums = u.new_empty(min(blocks, MAX_PROGRAMS), u.shape[1], dtype=torch.float32)
    tensors = (u, grad_v, grad_u, sums)
    launch("gelu_unshift_backward", (len(sums),), tensors, (*shift[:3], blocks), **sizes)
    return grad_u, sums.sum(0).to(u.dtype)


def count_programs(count: int, rows: int) -> int:
    """Return how many programs of ``rows`` rows cover ``count`` rows."""
    return -(-count // rows)


def next_power_of_two(count: int) -> int:
    """Return the smallest power of two that is not below ``count``."""
    return 1 << (count - 1).bit_length()
