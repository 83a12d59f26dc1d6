"""Pseudo-inverses of small matrices by an iteration of products, with its own gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, baddbmm
from torch.autograd.function import once_differentiable


def pseudo_inverse(a: Tensor, iterations: int = 6) -> Tensor:
    """Of each of (B, m, m), by the iteration of Razavi et al.; one scale for all of them."""
    a = _to_float32(a)
    return _iterate(a, a.mT / _scale(a), iterations)


def pseudo_inverse_of_repeated(a: Tensor, count: int, iterations: int = 6) -> Tensor:
    """The same where the first rows and columns, ``count`` of each, are equal: small bags.

    Such a matrix is E b E^T for a smaller b, E having orthonormal columns (the first with
    1 / sqrt(count) where the others are repeated), and so are all matrices of the iteration.
    """
    a = _to_float32(a)
    weight = torch.ones(a.shape[-1] - count + 1, dtype=a.dtype, device=a.device)
    weight[:1].fill_(count**0.5)  # not by assignment, which copies from the CPU
    b = a[..., count - 1 :, count - 1 :] * weight[:, None] * weight
    z = _iterate(b, b.mT / _scale(a), iterations) / weight[:, None] / weight
    row = (torch.arange(a.shape[-1], device=a.device) - count + 1).clamp(min=0)
    return z.index_select(-2, row).index_select(-1, row)


def _scale(a: Tensor) -> Tensor:
    return a.abs().sum(-1).max() * a.abs().sum(-2).max()


def _to_float32(a: Tensor) -> Tensor:
    """In float32 where autocast asks for half of its digits: too few for an inverse."""
    return a.to(torch.promote_types(a.dtype, torch.float32)) if _is_autocast_enabled(a) else a


def _iterate(a: Tensor, z: Tensor, iterations: int) -> Tensor:
    z = z.contiguous()  # rows that lie across are slow to add to, in bfloat16 on a CPU by far
    with _disable_autocast(a):
        if torch.compiler.is_compiling():
            for _ in range(iterations):
                *_, z = _step(a, z)
            return z
        found: Tensor = _IterationFunction.apply(a, z, iterations)  # type: ignore[no-untyped-call]
        return found


def _is_autocast_enabled(a: Tensor) -> bool:
    kind = a.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _disable_autocast(a: Tensor) -> AbstractContextManager[Any]:
    return (
        torch.autocast(a.device.type, enabled=False) if _is_autocast_enabled(a) else nullcontext()
    )


def _step(a: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y = a z, y (7 - y), y (15 - y (7 - y)), and the next z: z (13 - y (15 - y (7 - y))) / 4."""
    y = a @ z
    first = (7 * y).baddbmm_(y, y, alpha=-1)
    second = (15 * y).baddbmm_(y, first, alpha=-1)
    return y, first, second, (3.25 * z).baddbmm_(z, second, alpha=-0.25)


class _IterationFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, z: Tensor, iterations: int) -> Tensor:
        kept = [a]
        for _ in range(iterations):
            *products, after = _step(a, z)
            kept += [z, *products] if any(ctx.needs_input_grad) else []
            z = after
        ctx.save_for_backward(*kept)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_z: Tensor) -> tuple[Tensor, Tensor, None]:
        a, *kept = ctx.saved_tensors
        of_a = torch.zeros_like(a, memory_format=torch.contiguous_format)
        of_z = of_z.contiguous()
        with _disable_autocast(a):
            for place in range(len(kept) - 4, -1, -4):
                z, y, first, second = kept[place : place + 4]
                of_y = _compute_gradient_of_y(of_z, z, y, first)
                of_z = (3.25 * of_z).baddbmm_(of_z, second.mT, alpha=-0.25).baddbmm_(a.mT, of_y)
                of_a.baddbmm_(of_y, z.mT)
        return of_a, of_z, None


def _compute_gradient_of_y(of_next: Tensor, z: Tensor, y: Tensor, first: Tensor) -> Tensor:
    """The gradient of y, of one step, from that of the next z."""
    of_second = baddbmm(y, z.mT, of_next, beta=0, alpha=-0.25)
    of_first = baddbmm(y, y.mT, of_second, beta=0, alpha=-1)
    of_y = (15 * of_second).add_(of_first, alpha=7).baddbmm_(of_second, first.mT, alpha=-1)
    return of_y.baddbmm_(of_first, y.mT, alpha=-1).baddbmm_(y.mT, of_first, alpha=-1)
