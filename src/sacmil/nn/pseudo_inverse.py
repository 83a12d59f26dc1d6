"""Iterative pseudo-inverses of small matrices, with their own gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, baddbmm
from torch.autograd.function import once_differentiable


def pseudo_inverse(a: Tensor, iterations: int = 6) -> Tensor:
    """Return the pseudo-inverse of each of (B, m, m) by Razavi et al.; one scale for all."""
    a = _to_float32(a)
    return _iterate(a, a.mT / _scale(a), iterations)


def pseudo_inverse_of_repeated(a: Tensor, count: int, iterations: int = 6) -> Tensor:
    """Do the same if the first ``count`` rows and columns are equal, as in small bags.

    Such a matrix is E b E^T for a smaller b, where E has orthonormal columns: the first holds
    1 / sqrt(count) for the repeated rows. All matrices of the iteration have this form.
    """
    a = _to_float32(a)
    weight = torch.ones(a.shape[-1] - count + 1, dtype=a.dtype, device=a.device)
    weight[:1].fill_(count**0.5)  # an assignment would copy from the CPU
    b = a[..., count - 1 :, count - 1 :] * weight[:, None] * weight
    z = _iterate(b, b.mT / _scale(a), iterations) / weight[:, None] / weight
    row = (torch.arange(a.shape[-1], device=a.device) - count + 1).clamp(min=0)
    return z.index_select(-2, row).index_select(-1, row)


def _scale(a: Tensor) -> Tensor:
    return a.abs().sum(-1).max() * a.abs().sum(-2).max()


def _to_float32(a: Tensor) -> Tensor:
    """Convert to float32 under autocast: half precision is too imprecise for an inverse."""
    return a.to(torch.promote_types(a.dtype, torch.float32)) if _is_autocast_enabled(a) else a


def _iterate(a: Tensor, z: Tensor, iterations: int) -> Tensor:
    z = z.contiguous()  # adding to transposed rows is slow, above all in bfloat16 on a CPU
    with _disable_autocast(a):
        if torch.compiler.is_compiling():
            for _ in range(iterations):
                *_, z = _step(a, z)
            return z
        inverse: Tensor = _IterationFunction.apply(a, z, iterations)  # type: ignore[no-untyped-call]
        return inverse


def _is_autocast_enabled(a: Tensor) -> bool:
    device = a.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _disable_autocast(a: Tensor) -> AbstractContextManager[Any]:
    return (
        torch.autocast(a.device.type, enabled=False) if _is_autocast_enabled(a) else nullcontext()
    )


def _step(a: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return y = a z, y (7 - y), y (15 - y (7 - y)), and z (13 - y (15 - y (7 - y))) / 4."""
    y = a @ z
    first = (7 * y).baddbmm_(y, y, alpha=-1)
    second = (15 * y).baddbmm_(y, first, alpha=-1)
    return y, first, second, (3.25 * z).baddbmm_(z, second, alpha=-0.25)


class _IterationFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, z: Tensor, iterations: int) -> Tensor:
        saved = [a]
        for _ in range(iterations):
            *products, after = _step(a, z)
            saved += [z, *products] if any(ctx.needs_input_grad) else []
            z = after
        ctx.save_for_backward(*saved)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_z: Tensor) -> tuple[Tensor, Tensor, None]:
        a, *saved = ctx.saved_tensors
        grad_a = torch.zeros_like(a, memory_format=torch.contiguous_format)
        grad_z = grad_z.contiguous()
        with _disable_autocast(a):
            for i in range(len(saved) - 4, -1, -4):
                z, y, first, second = saved[i : i + 4]
                grad_y = _compute_gradient_of_y(grad_z, z, y, first)
                grad_z = (3.25 * grad_z).baddbmm_(grad_z, second.mT, alpha=-0.25)
                grad_z = grad_z.baddbmm_(a.mT, grad_y)
                grad_a.baddbmm_(grad_y, z.mT)
        return grad_a, grad_z, None


def _compute_gradient_of_y(of_next: Tensor, z: Tensor, y: Tensor, first: Tensor) -> Tensor:
    """Return the gradient of y of one step, from that of the next z."""
    of_second = baddbmm(y, z.mT, of_next, beta=0, alpha=-0.25)
    of_first = baddbmm(y, y.mT, of_second, beta=0, alpha=-1)
    of_y = (15 * of_second).add_(of_first, alpha=7).baddbmm_(of_second, first.mT, alpha=-1)
    return of_y.baddbmm_(of_first, y.mT, alpha=-1).baddbmm_(y.mT, of_first, alpha=-1)
