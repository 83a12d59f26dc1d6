"""Dilated attention (LongNet, Ding et al. 2023): exact, among every r-th token of a segment.

Several branches, short and dense to long and sparse, are mixed by how much attention each found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

UNCOVERED = -1e8
"""The log-sum-exp of a token and head that a branch leaves out: next to any other, no weight."""

LOGITS_AT_ONCE = 1 << 22
"""How many attention logits are held at a time to sum their exponentials."""


class Branch(NamedTuple):
    """One segment length w and dilation r.

    Heads stand in r groups, one after the other; group g sees tokens g, g + r, g + 2r, ... of each
    segment. Tokens and heads are filled up with zeros where they do not divide; the zero keys
    score 0 and take their weight, as officially.
    """

    segment: int
    dilation: int

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, legacy_placement: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Output (n, heads, dim of a head), zero where uncovered, and log-sum-exp (n, heads)."""
        n, heads, _ = q.shape
        q, k, v = self._gather(q), self._gather(k), self._gather(v)
        h = F.scaled_dot_product_attention(q, k, v)
        with torch.no_grad():
            lse = log_sum_exp(q.flatten(0, 1), k.flatten(0, 1)).view(*q.shape[:3], 1)
        out = self._scatter(h, n, heads, 0.0, legacy_placement=legacy_placement)
        lse = self._scatter(lse, n, heads, UNCOVERED, legacy_placement=legacy_placement)
        return out, lse[:, :, 0]

    def _gather(self, x: Tensor) -> Tensor:
        """(n, heads, d) to (segments * groups, heads of a group, tokens of a group, d)."""
        (n, heads, d), r = x.shape, self.dilation
        width = min(self.segment, n)
        x = F.pad(x, (0, 0, 0, -heads % r, 0, -n % width))
        x = F.pad(x.reshape(-1, width, x.shape[1], d), (0, 0, 0, 0, 0, -width % r))
        segments, length, heads, _ = x.shape
        # Of every r tokens, group g takes the g-th.
        x = x.reshape(segments, length // r, r, r, heads // r, d).diagonal(dim1=2, dim2=3)
        return x.permute(0, 4, 2, 1, 3).flatten(0, 1)

    def _scatter(
        self, x: Tensor, n: int, heads: int, fill: float, *, legacy_placement: bool
    ) -> Tensor:
        """Back to (n, heads, d), with ``fill`` for the tokens that a head did not see."""
        r = self.dilation
        x = x.reshape(-1, r, *x.shape[1:]).permute(0, 3, 2, 4, 1)
        whole = x.new_full((*x.shape[:2], r, r, *x.shape[2:4]), fill)
        whole = torch.diagonal_scatter(whole, x, dim1=2, dim2=3).flatten(1, 2).flatten(2, 3)
        # The official code leaves the filling of each segment where it is, which moves the rows of
        # every later segment.
        segments = whole if legacy_placement else whole[:, : min(self.segment, n)]
        return segments.flatten(0, 1)[:n, :heads]


def dilated_attention(
    q: Tensor, k: Tensor, v: Tensor, branches: Sequence[Branch], *, legacy_placement: bool = False
) -> Tensor:
    """The branches' outputs, weighted by the softmax of their log-sum-exp; all (n, heads, d).

    The weights are constants to the gradient, as in the official code.
    """
    found = [branch.attend(q, k, v, legacy_placement=legacy_placement) for branch in branches]
    weights = torch.stack([lse for _, lse in found]).softmax(0).to(v.dtype)
    mixed = torch.zeros_like(v)
    for weight, (out, _) in zip(weights, found, strict=True):
        mixed = mixed + weight[:, :, None] * out
    return mixed


def log_sum_exp(q: Tensor, k: Tensor) -> Tensor:
    """(m, n): log of the summed exponentials that a softmax attention divides by.

    Args:
        q: (m, n, d), queries of m attentions side by side.
        k: (m, n, d), keys.
    """
    # Torch's fast kernels keep this number to themselves: it costs a second product here, in
    # blocks that fit a cache rather than as one m x n x n matrix.
    n = q.shape[1]
    matrices, rows = max(1, LOGITS_AT_ONCE // n**2), max(1, LOGITS_AT_ONCE // n)
    q = q * q.shape[2] ** -0.5
    sums = [
        torch.cat([_row_sums(some, keys) for some in torch.split(queries, rows, dim=1)], dim=1)
        for queries, keys in zip(torch.split(q, matrices), torch.split(k, matrices), strict=True)
    ]
    return torch.cat(sums)


def _row_sums(q: Tensor, k: Tensor) -> Tensor:
    logits = q @ k.mT
    return logits.to(torch.promote_types(q.dtype, torch.float32)).logsumexp(-1)


class DilatedAttention(nn.Module):
    """(N, dim) to (N, dim), with a norm before the output layer (sub-LN).

    Args:
        dim: width of a token.
        heads: attentions side by side, a divisor of dim.
        branches: segment lengths and dilations.
        legacy_placement: put the rows of later segments where the official code does.
    """

    def __init__(
        self, dim: int, *, heads: int, branches: Sequence[Branch], legacy_placement: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.branches, self.legacy_placement = heads, branches, legacy_placement
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, dim)."""
        q, k, v = (
            layer(x).unflatten(1, (self.heads, -1)) for layer in (self.query, self.key, self.value)
        )
        h = dilated_attention(q, k, v, self.branches, legacy_placement=self.legacy_placement)
        y: Tensor = self.out(self.norm(h.flatten(1)))
        return y
