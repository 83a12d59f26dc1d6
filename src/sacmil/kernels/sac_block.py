"""A SAC block in two products and two passes: norm with shift, GELU with shift back.

What plain operations would write and read again (the normed, the shifted, the activated rows) is
never there. For the gradient only the block's input and the first product are kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sacmil.kernels.switch import fast, kernels, where

WIDEST = 4096
"""Channels of a row that one program holds."""


class Shift(NamedTuple):
    """Where folds go, as the kernels take it."""

    n: int
    ring: int
    step: int
    absorbed: int
    k: int

    @classmethod
    def of(cls, n: int, k: int, level: int, tail: str) -> Shift:
        """Of a bag of n; a ring longer than the bag is the bag."""
        ring, step = k ** (level + 1), k**level
        if ring > n:
            ring, step = n + 1, step % n
        return cls(n, ring, step, int(tail == "absorb"), k)


def serves(block: Any, x: Tensor) -> bool:
    """Whether there is a fast path for a SACBlock with these options, and for x."""
    dim = x.shape[1]
    usual = isinstance(block.act, nn.GELU) and isinstance(block.decay, nn.Identity)
    return usual and block.residual and dim % block.k == 0 and dim <= WIDEST and fast(x)


def correlate(block: Any, x: Tensor) -> Tensor:
    """x + W2 unshift(GELU(W1 shift(LN(x)))), with a SACBlock's parameters."""
    norm, w1, w2 = block.norm, block.w1, block.w2
    given = (norm.weight, norm.bias, w1.weight, w1.bias, w2.weight, w2.bias)
    shift = Shift.of(len(x), block.k, block.level, block.tail)
    with where(x):
        out: Tensor = _Block.apply(x, *(each.to(x.dtype) for each in given), norm.eps, shift)  # type: ignore[no-untyped-call]
    return out


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Any) -> Tensor:
        weight, bias, w1, b1, w2, b2, eps, shift = given
        x = x.contiguous()
        u = torch.addmm(b1, norm_shift(x, weight, bias, eps, shift), w1.t())
        ctx.save_for_backward(x, u, weight, bias, w1, w2)
        ctx.eps, ctx.shift = eps, shift
        return torch.addmm(b2, gelu_unshift(u, shift), w2.t()).add_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, u, weight, bias, w1, w2 = ctx.saved_tensors
        grad_out = grad_out.contiguous()
        v, grad_u, grad_b1 = gelu_unshift_backward(u, grad_out @ w2, ctx.shift)
        grad_w2, grad_b2 = grad_out.t() @ v, grad_out.sum(0)
        del v
        grads = norm_shift_backward(
            x, weight, bias, grad_u @ w1, grad_out, eps=ctx.eps, shift=ctx.shift
        )
        y, grad_x, grad_weight, grad_bias = grads
        grad_w1 = grad_u.t() @ y
        return grad_x, grad_weight, grad_bias, grad_w1, grad_b1, grad_w2, grad_b2, None, None


def norm_shift(x: Tensor, weight: Tensor, bias: Tensor, eps: float, shift: Shift) -> Tensor:
    """shift(LN(x)), (N, D)."""
    dim, y = x.shape[1], torch.empty_like(x)
    rows, columns = _rows(dim), _power_of_two(dim)
    kernels().norm_shift[_programs(shift.n, rows),](
        x, weight, bias, y, *shift[:4], eps, D=dim, K=shift.k, ROWS=rows, COLUMNS=columns
    )
    return y


def norm_shift_backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    grad_y: Tensor,
    grad_out: Tensor,
    *,
    eps: float,
    shift: Shift,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y again, and the gradients of x (with grad_out, which goes by the block), weight, bias."""
    dim, y, grad_x = x.shape[1], torch.empty_like(x), torch.empty_like(x)
    rows, columns = _rows(dim), _power_of_two(dim)
    programs = _programs(shift.n, rows)
    sums = x.new_empty(2, programs, dim, dtype=torch.float32)
    kernels().norm_shift_backward[programs,](
        x, weight, bias, grad_y, grad_out, y, grad_x, sums[0], sums[1],
        *shift[:4], eps, D=dim, K=shift.k, ROWS=rows, COLUMNS=columns,
    )  # fmt: skip
    grad_weight, grad_bias = sums.sum(1).to(weight.dtype)
    return y, grad_x, grad_weight, grad_bias


def gelu_unshift(u: Tensor, shift: Shift) -> Tensor:
    """unshift(GELU(u)), (N, D)."""
    v, grid, sizes = torch.empty_like(u), *_tiles(shift.n, u.shape[1])
    kernels().gelu_unshift[grid](u, v, *shift[:4], D=u.shape[1], K=shift.k, **sizes)
    return v


def gelu_unshift_backward(u: Tensor, grad_v: Tensor, shift: Shift) -> tuple[Tensor, Tensor, Tensor]:
    """v again, the gradient of u, and its sum over instances."""
    dim, v, grad_u = u.shape[1], torch.empty_like(u), torch.empty_like(u)
    grid, sizes = _tiles(shift.n, dim)
    sums = u.new_empty(grid[0], dim, dtype=torch.float32)
    kernels().gelu_unshift_backward[grid](
        u, grad_v, v, grad_u, sums, *shift[:4], D=dim, K=shift.k, **sizes
    )
    return v, grad_u, sums.sum(0).to(u.dtype)


def _rows(dim: int) -> int:
    """Rows of a program that holds them whole: some 4,096 numbers."""
    return max(1, 4096 // _power_of_two(dim))


def _tiles(n: int, dim: int) -> tuple[tuple[int, int], dict[str, int]]:
    columns = min(128, _power_of_two(dim))
    return (_programs(n, 32), _programs(dim, columns)), {"ROWS": 32, "COLUMNS": columns}


def _programs(count: int, each: int) -> int:
    return -(-count // each)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
