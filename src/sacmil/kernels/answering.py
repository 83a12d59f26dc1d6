"""SAC-MIL's answer where no gradient is asked for: rows are added to where they stand.

A block's last bias is not written into every row: it is the same for all, and carried along.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sacmil.kernels import sac_block
from sacmil.kernels.launching import launch
from sacmil.kernels.pieces import whole_rings
from sacmil.kernels.sac_block import Shift
from sacmil.kernels.switch import fast, where

AT_ONCE = 262_144
"""Rows that have their operands in memory at once, or one ring, where that is longer."""


class Answer(NamedTuple):
    """What is left of the instances."""

    mean: Tensor
    """(D,)."""
    norms: Tensor
    """(N,), in the bag's own order."""


def answer(blocks: Any, h: Tensor, order: Tensor) -> Answer | None:
    """Of what SAC blocks make of h, or None where there is no fast path to it.

    Args:
        blocks: one after the other.
        h: (N, D), in arranged order; may be written over.
        order: which instance comes first, second, …
    """
    if torch.is_grad_enabled() or not fast(h):
        return None
    if not all(hasattr(block, "w1") and sac_block.serves(block, h) for block in blocks):
        return None
    h = h.contiguous()
    carried: Tensor | None = None
    with where(h):
        for block in blocks:
            given = sac_block.parameters(block, h.dtype)
            for rows in whole_rings(len(h), block.k ** (block.level + 1), AT_ONCE):
                _correlate(block, given, h[rows], carried)
            carried = given[5].float() if carried is None else carried + given[5]
        return _finish(h, carried, order)


def _correlate(block: Any, given: list[Tensor], x: Tensor, carried: Tensor | None) -> None:
    """Add to x what the block adds, but for its last bias."""
    weight, bias, w1, b1, w2, _ = given
    shift = Shift.of(block, len(x))
    statistics = sac_block.row_statistics(x, block.norm.eps, carried)
    y = sac_block.norm_shift(x, statistics, weight, bias, shift, carried)
    u = torch.addmm(b1, y, w1.t())
    x.addmm_(sac_block.gelu_unshift(u, shift, out=y), w2.t())


def _finish(h: Tensor, carried: Tensor | None, order: Tensor) -> Answer:
    n, dim = h.shape
    carried = h.new_zeros(dim, dtype=torch.float32) if carried is None else carried
    columns = sac_block.power_of_two(dim)
    rows = max(1, 8192 // columns)
    blocks = sac_block.programs(n, rows)
    norms = torch.empty_like(h[:, 0])
    sums = h.new_empty(min(blocks, sac_block.PROGRAMS), dim, dtype=torch.float32)
    tensors = (h, carried, order, norms, sums)
    launch("finish", (len(sums),), tensors, (n, blocks), D=dim, ROWS=rows, COLUMNS=columns)
    return Answer(sums.sum(0).to(h.dtype), norms)
