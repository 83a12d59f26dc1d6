"""Dilated attention (LongNet, Ding et al. 2023): exact, among every r-th token of a segment.

Branches from short and dense to long and sparse are averaged, weighted by their log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.plans.segments import find_token_rows, list_attended_tokens

UNCOVERED_LSE = -1e8
"""Log-sum-exp of a token and head that a branch leaves out; gives it no weight."""

MAX_LOGITS = 1 << 22
"""Attention logits held at a time to sum their exponentials."""


class AttentionTable(NamedTuple):
    """The tokens of each attention of a branch, from sacmil.plans.segments."""

    tokens: Tensor
    """(m, t): the tokens of m attentions, r consecutive ones per segment; n for a zero token."""
    rows: Tensor
    """(n,): the row of each token's output in ``tokens``."""


class DilatedBranch(NamedTuple):
    """One segment length w and dilation r.

    Heads form r consecutive groups; group g sees tokens g, g + r, g + 2r, ... of each segment.
    Tokens and heads are padded with zeros where they do not divide. Zero keys have logit 0 and take
    their weight, as officially.
    """

    segment: int
    dilation: int

    def make_table(self, n: int, *, legacy_placement: bool = False) -> AttentionTable:
        """Return the table for n tokens."""
        rows = find_token_rows(n, self.segment, self.dilation, legacy_placement=legacy_placement)
        return AttentionTable(
            *map(torch.from_numpy, (list_attended_tokens(n, self.segment, self.dilation), rows))
        )

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        legacy_placement: bool = False,
        table: AttentionTable | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return output (n, heads, dim of a head), zero if uncovered, and lse (n, heads)."""
        if table is None:
            table = self.make_table(q.shape[0], legacy_placement=legacy_placement)
        tokens, rows = table.tokens.to(q.device), table.rows.to(q.device)
        heads = q.shape[1]
        h, lse = attend_with_lse(*(self._gather(x, tokens) for x in (q, k, v)))
        out = self._scatter(h, tokens, rows, 0.0)[:, :heads]
        return out, self._scatter(lse[..., None], tokens, rows, UNCOVERED_LSE)[:, :heads, 0]

    def _gather(self, x: Tensor, tokens: Tensor) -> Tensor:
        """(n, heads, d) to (m, heads of a group, t, d)."""
        r = self.dilation
        heads = (x.shape[1] + r - 1) // r
        x = F.pad(x, (0, 0, 0, heads * r - x.shape[1], 0, 1)).reshape(-1, heads, x.shape[2])
        group = torch.arange(tokens.shape[0], device=x.device) % r
        rows = (tokens * r + group[:, None]).flatten()
        return x.index_select(0, rows).reshape(*tokens.shape, *x.shape[1:]).transpose(1, 2)

    def _scatter(self, x: Tensor, tokens: Tensor, rows: Tensor, fill: float) -> Tensor:
        """Return (n, heads, d), with ``fill`` for the tokens that a head does not see."""
        r = self.dilation
        own = x.transpose(1, 2).flatten(0, 1).index_select(0, rows)  # (n, heads of a group, d)
        group = rows // tokens.shape[1] % r
        covered = group[:, None] == torch.arange(r, device=x.device)
        return torch.where(covered[:, :, None, None], own[:, None], fill).flatten(1, 2)


def attend_with_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax attention and its log-sum-exp, which has no gradient.

    Args:
        q: (m, heads, n, d), as are k and v.
        k: keys.
        v: values.
    """
    if torch.compiler.is_compiling():  # sizes of blocks would be fixed by an export
        logits = q @ k.mT * q.shape[3] ** -0.5
        lse = logits.logsumexp(-1)
        return (logits - lse[..., None]).exp() @ v, lse
    with torch.no_grad():
        lse = log_sum_exp(q.flatten(0, 1), k.flatten(0, 1)).view(q.shape[:3])
    return F.scaled_dot_product_attention(q, k, v), lse


def dilated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    branches: Sequence[DilatedBranch],
    *,
    legacy_placement: bool = False,
    tables: Sequence[AttentionTable] | None = None,
) -> Tensor:
    """Average the outputs of branches, weighted by the softmax of their lse; all (n, heads, d).

    The weights are constants to the gradient, as in the official code.

    Args:
        q: queries.
        k: keys.
        v: values.
        branches: segment lengths and dilations.
        legacy_placement: put the rows of later segments where the official code does.
        tables: tokens of each branch; made here if not given.
    """
    if not tables:
        tables = [b.make_table(q.shape[0], legacy_placement=legacy_placement) for b in branches]
    pairs = zip(branches, tables, strict=True)
    outputs = [branch.attend(q, k, v, table=table) for branch, table in pairs]
    weights = torch.stack([lse for _, lse in outputs]).softmax(0).to(v.dtype)
    mixed = torch.zeros_like(v)
    for weight, (out, _) in zip(weights, outputs, strict=True):
        mixed = mixed + weight[:, :, None] * out
    return mixed


def log_sum_exp(q: Tensor, k: Tensor) -> Tensor:
    """Return the log of the sum that a softmax attention divides by, (m, n).

    Args:
        q: (m, n, d), queries of m attentions.
        k: (m, n, d), keys.
    """
    # Torch's fast kernels do not return it: it costs a second product here, in blocks that fit a
    # cache instead of one m x n x n matrix.
    n = q.shape[1]
    matrices, rows = max(1, MAX_LOGITS // n**2), max(1, MAX_LOGITS // n)
    q = q * q.shape[2] ** -0.5
    sums = [
        torch.cat(
            [_row_log_sum_exp(some, keys) for some in torch.split(queries, rows, dim=1)], dim=1
        )
        for queries, keys in zip(torch.split(q, matrices), torch.split(k, matrices), strict=True)
    ]
    return torch.cat(sums)


def _row_log_sum_exp(q: Tensor, k: Tensor) -> Tensor:
    logits = q @ k.mT
    return logits.to(torch.promote_types(q.dtype, torch.float32)).logsumexp(-1)


class DilatedAttention(nn.Module):
    """(N, dim) to (N, dim), with a norm before the output layer (sub-LN).

    Args:
        dim: width of a token.
        heads: number of attention heads, a divisor of dim.
        branches: segment lengths and dilations.
        legacy_placement: put the rows of later segments where the official code does.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int,
        branches: Sequence[DilatedBranch],
        legacy_placement: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.branches, self.legacy_placement = heads, branches, legacy_placement
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, tables: Sequence[AttentionTable] | None = None) -> Tensor:
        """x (N, dim); tables as for ``dilated_attention``."""
        q, k, v = (
            layer(x).unflatten(1, (self.heads, -1)) for layer in (self.query, self.key, self.value)
        )
        legacy = self.legacy_placement
        h = dilated_attention(q, k, v, self.branches, legacy_placement=legacy, tables=tables)
        y: Tensor = self.out(self.norm(h.flatten(1)))
        return y
