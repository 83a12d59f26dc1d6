"""Nystrom attention (Xiong et al. 2021) as TransMIL uses it: softmax attention over landmarks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, baddbmm, nn
from torch.autograd.function import once_differentiable

from sacmil.nn.depthwise import convolve_rows


class NystromFactors(NamedTuple):
    """The attention matrix as a product, left @ inverse @ right; P rows, padding first."""

    left: Tensor
    """(heads, P, landmarks)"""
    inverse: Tensor
    """(heads, landmarks, landmarks)"""
    right: Tensor
    """(heads, landmarks, P)"""
    values: Tensor
    """(heads, P, dim of a head)"""
    padding: int
    """P - N, the zero rows in front."""


class NystromAttention(nn.Module):
    """(N, dim) to (N, dim).

    For scores: ``factors = attention.factorize(x)``. Then ``attention.combine(factors)`` is the
    output, and ``attention.attention_row(factors, i)`` the attention of instance i to all others.

    Args:
        dim: width of an instance.
        heads: number of attention heads.
        head_dim: width of a head; None means dim / heads.
        landmarks: number of landmarks, means of consecutive instances; None means dim / 2.
        iterations: steps towards the pseudo-inverse.
        taps: length of the convolution over values that is added.
        dropout: after the output layer.
        legacy_slice: keep the first N rows, as nystrom-attention before 0.0.10, although the
            padding comes first.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        head_dim: int | None = None,
        landmarks: int | None = None,
        iterations: int = 6,
        taps: int = 33,
        dropout: float = 0.0,
        legacy_slice: bool = False,
    ) -> None:
        super().__init__()
        head_dim = dim // heads if head_dim is None else head_dim
        self.heads, self.scale = heads, head_dim**-0.5
        self.landmarks = max(1, dim // 2) if landmarks is None else landmarks
        self.iterations, self.legacy_slice = iterations, legacy_slice
        self.qkv = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        self.residual = nn.Conv2d(
            heads, heads, (taps, 1), padding=(taps // 2, 0), groups=heads, bias=False
        )
        self.out = nn.Linear(heads * head_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, dim)."""
        return self.combine(self.factorize(x))

    def factorize(self, x: Tensor) -> NystromFactors:
        """Return the softmaxes between instances and landmarks; includes padding, as officially."""
        n, m = x.shape[0], self.landmarks
        padding = ((n + m - 1) // m) * m - n
        qkv = self.qkv(_pad_in_front(x, padding))
        q, k, v = self._split_heads(qkv)
        q_marks, k_marks, _ = self._split_heads(qkv.reshape(m, (n + padding) // m, -1).mean(1))
        left = (q @ k_marks.mT).softmax(-1)
        middle = (q_marks @ k_marks.mT).softmax(-1)
        right = (q_marks @ k.mT).softmax(-1)
        inverse = self._invert(middle, padding * m // (n + padding))
        return NystromFactors(left, inverse, right, v, padding)

    def _split_heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, (heads, …, dim of a head) each."""
        q, k, v = qkv.reshape(qkv.shape[0], 3, self.heads, -1).permute(1, 2, 0, 3)
        return q * self.scale, k, v

    def _invert(self, middle: Tensor, empty: int) -> Tensor:
        """Return the pseudo-inverse; the first ``empty`` landmarks are equal means of padding."""
        if torch.compiler.is_compiling() or empty < 2:  # sizes that depend on N cannot be exported
            return pseudo_inverse(middle, self.iterations)
        return pseudo_inverse_of_repeated(middle, empty, self.iterations)

    def combine(self, factors: NystromFactors) -> Tensor:
        """Return the output, (N, dim)."""
        left, inverse, right, v, padding = factors
        h = left @ (inverse @ (right @ v))
        h = h + convolve_rows(v, self.residual.weight[:, 0, :, 0])
        y: Tensor = self.dropout(self.out(h.transpose(0, 1).flatten(1)))
        first = 0 if self.legacy_slice else padding
        return y.index_select(0, torch.arange(y.shape[0] - padding, device=y.device) + first)

    def attention_row(self, factors: NystromFactors, index: int) -> Tensor:
        """Return the weights that instance ``index`` gives to all instances, (heads, N)."""
        left, inverse, right, _, padding = factors
        weights = left[:, padding + index, None] @ inverse @ right
        return weights[:, 0, padding:]


def _pad_in_front(x: Tensor, padding: int) -> Tensor:
    """Put zero rows before x. Uses indices: an export cannot know that padding is not negative."""
    index = torch.arange(x.shape[0] + padding, device=x.device) - padding
    return x.index_select(0, index.clamp(min=0)) * (index >= 0)[:, None]


# --- iterative pseudo-inverses of small matrices, with their own gradient -------------------------


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
    enabled = _is_autocast_enabled(a)
    return torch.autocast(a.device.type, enabled=False) if enabled else nullcontext()


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
