"""A SAC block in two products and a few passes: norm with shift, GELU with shift back.

What plain operations would write and read again (the normed, the shifted, the activated rows) is
there only as an operand of a product. For the gradient the block's input, two numbers for each of
its rows, and the first product are kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sacmil.kernels.launching import launch
from sacmil.kernels.switch import fast, where

WIDEST = 4096
"""Channels of a row that one program holds."""
PROGRAMS = 4096
"""That sum over instances: each has its own sums, which are added up at the end."""


class Shift(NamedTuple):
    """Where folds go, as the kernels take it."""

    n: int
    ring: int
    step: int
    absorb: bool
    k: int

    @classmethod
    def of(cls, block: Any, n: int) -> Shift:
        """Of a SACBlock and a bag of n; a ring longer than the bag is the bag."""
        ring, step = block.k ** (block.level + 1), block.k**block.level
        if ring > n:
            ring, step = n + 1, step % n
        return cls(n, ring, step, block.tail == "absorb", block.k)

    def sizes(self, dim: int, numbers: int = 2048) -> dict[str, Any]:
        """Of a program: whole rows, so many numbers, fold by fold."""
        folds, width = power_of_two(self.k), power_of_two(dim // self.k)
        rows = max(1, numbers // (folds * width))
        of_model = {"D": dim, "K": self.k, "ABSORB": self.absorb}
        return of_model | {"ROWS": rows, "FOLDS": folds, "WIDTH": width}


def serves(block: Any, x: Tensor) -> bool:
    """Whether there is a fast path for a SACBlock with these options, and for x."""
    dim = x.shape[1]
    return usual(block, dim) and dim <= WIDEST and _alike(x) and fast(x)


def usual(block: Any, dim: int) -> bool:
    """Whether a SACBlock has the options that there are fast paths for."""
    layers = isinstance(block.act, nn.GELU) and isinstance(block.decay, nn.Identity)
    return layers and block.residual and dim % block.k == 0


def _alike(x: Tensor) -> bool:
    """Whether products have x's kind of numbers: autocast may ask for another."""
    kind = x.device.type
    return not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) == x.dtype


def correlate(block: Any, x: Tensor) -> Tensor:
    """x + W2 unshift(GELU(W1 shift(LN(x)))), with a SACBlock's parameters."""
    shift = Shift.of(block, len(x))
    with where(x):
        out: Tensor = _Block.apply(x, *parameters(block, x.dtype), block.norm.eps, shift)  # type: ignore[no-untyped-call]
    return out


def parameters(block: Any, dtype: torch.dtype) -> list[Tensor]:
    """Of a SACBlock: weight and bias of the norm, of W1 and of W2."""
    layers = (block.norm, block.w1, block.w2)
    held = [each for layer in layers for each in (layer.weight, layer.bias)]
    return held if all(each.dtype == dtype for each in held) else [each.to(dtype) for each in held]


class _Block(torch.autograd.Function):
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


def row_statistics(x: Tensor, eps: float, carried: Tensor | None = None) -> Tensor:
    """What LN subtracts from each row of x (plus what is carried), and multiplies it by.

    (N,), 64 bits that hold two numbers.
    """
    n, dim = x.shape
    statistics = x.new_empty(n, dtype=torch.int64)
    columns = power_of_two(dim)
    rows = max(1, 4096 // columns)
    sizes = {"D": dim, "CARRIED": carried is not None, "ROWS": rows, "COLUMNS": columns}
    launch("row_statistics", (programs(n, rows),), (x, carried, statistics), (n, eps), **sizes)
    return statistics


def norm_shift(
    x: Tensor,
    statistics: Tensor,
    weight: Tensor,
    bias: Tensor,
    shift: Shift,
    carried: Tensor | None = None,
) -> Tensor:
    """shift(LN(x)), (N, D); of x plus what is carried, where something is."""
    y, sizes = torch.empty_like(x), shift.sizes(x.shape[1])
    tensors = (x, carried, statistics, weight, bias, y)
    grid = (programs(shift.n, sizes["ROWS"]),)
    launch("norm_shift", grid, tensors, shift[:3], CARRIED=carried is not None, **sizes)
    return y


def norm_shift_backward(
    x: Tensor, statistics: Tensor, weight: Tensor, grad_y: Tensor, grad_out: Tensor, shift: Shift
) -> tuple[Tensor, Tensor]:
    """The gradient of x (with grad_out, which goes by the block); of weight, bias and output."""
    dim, grad_x, sizes = x.shape[1], torch.empty_like(x), shift.sizes(x.shape[1], 1024)
    blocks = programs(shift.n, sizes["ROWS"])
    sums = x.new_empty(min(blocks, PROGRAMS), 3, dim, dtype=torch.float32)
    tensors = (x, statistics, weight, grad_y, grad_out, grad_x, sums)
    launch("norm_shift_backward", (len(sums),), tensors, (*shift[:3], blocks), **sizes)
    return grad_x, sums.sum(0).to(weight.dtype)


def gelu_unshift(u: Tensor, shift: Shift, out: Tensor | None = None) -> Tensor:
    """unshift(GELU(u)), (N, D)."""
    v, sizes = torch.empty_like(u) if out is None else out, shift.sizes(u.shape[1])
    launch("gelu_unshift", (programs(shift.n, sizes["ROWS"]),), (u, v), shift[:3], **sizes)
    return v


def gelu_unshift_backward(u: Tensor, grad_v: Tensor, shift: Shift) -> tuple[Tensor, Tensor]:
    """The gradient of u, and its sum over instances."""
    grad_u, sizes = torch.empty_like(u), shift.sizes(u.shape[1], 1024)
    blocks = programs(shift.n, sizes["ROWS"])
    sums = u.new_empty(min(blocks, PROGRAMS), u.shape[1], dtype=torch.float32)
    tensors = (u, grad_v, grad_u, sums)
    launch("gelu_unshift_backward", (len(sums),), tensors, (*shift[:3], blocks), **sizes)
    return grad_u, sums.sum(0).to(u.dtype)


def programs(count: int, each: int) -> int:
    """Of so many rows each."""
    return -(-count // each)


def power_of_two(count: int) -> int:
    """The next one."""
    return 1 << (count - 1).bit_length()
