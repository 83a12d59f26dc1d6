"""Nystrom attention (Xiong et al. 2021) as TransMIL uses it: softmax attention over landmarks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sacmil.nn.depthwise import convolve_rows
from sacmil.nn.pseudo_inverse import pseudo_inverse, pseudo_inverse_of_repeated


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
