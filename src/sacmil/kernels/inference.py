"""SAC-MIL inference without gradients: blocks update the rows in place.

The last bias of a block is the same for all rows. It is not added to each row but carried along.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from sacmil.kernels import sac_block
from sacmil.kernels.chunked_cpu import split_at_rings
from sacmil.kernels.config import can_run_kernels, use_device_of
from sacmil.kernels.launch import launch
from sacmil.kernels.sac_block import FoldShift

CHUNK_ROWS = 262_144
"""Rows processed at once, or one ring if that is longer."""


class PooledInstances(NamedTuple):
    """Mean and norms of the instances."""

    mean: Tensor
    """(D,)."""
    norms: Tensor
    """(N,), in the order of the bag."""


def correlate_and_pool(blocks: Any, h: Tensor, order: Tensor) -> PooledInstances | None:
    """Apply SAC blocks and pool; None if there is no fast path.

    Args:
        blocks: applied in order.
        h: (N, D), in arranged order; may be overwritten.
        order: index of the first, second, … instance.
    """
    if torch.is_grad_enabled() or not can_run_kernels(h):
        return None
    if not all(hasattr(block, "w1") and sac_block.supports(block, h) for block in blocks):
        return None
    h = h.contiguous()
    carried: Tensor | None = None
    with use_device_of(h):
        for block in blocks:
            given = sac_block.get_parameters(block, h.dtype)
            for rows in split_at_rings(len(h), block.k ** (block.level + 1), CHUNK_ROWS):
                _add_block_output(block, given, h[rows], carried)
            carried = given[5].float() if carried is None else carried + given[5]
        return _reduce_rows(h, carried, order)


def _add_block_output(
    block: Any, parameters: list[Tensor], x: Tensor, carried_bias: Tensor | None
) -> None:
    """Add the output of the block to x, without its last bias."""
    weight, bias, w1, b1, w2, _ = parameters
    shift = FoldShift.for_block(block, len(x))
    statistics = sac_block.row_statistics(x, block.norm.eps, carried_bias)
    y = sac_block.norm_shift(x, statistics, weight, bias, shift, carried_bias)
    u = torch.addmm(b1, y, w1.t())
    x.addmm_(sac_block.gelu_unshift(u, shift, out=y), w2.t())


def _reduce_rows(h: Tensor, carried_bias: Tensor | None, order: Tensor) -> PooledInstances:
    n, dim = h.shape
    carried_bias = h.new_zeros(dim, dtype=torch.float32) if carried_bias is None else carried_bias
    columns = sac_block.next_power_of_two(dim)
    rows = max(1, 8192 // columns)
    blocks = sac_block.count_programs(n, rows)
    norms = torch.empty_like(h[:, 0])
    sums = h.new_empty(min(blocks, sac_block.MAX_PROGRAMS), dim, dtype=torch.float32)
    tensors = (h, carried_bias, order, norms, sums)
    launch("norms_and_mean", (len(sums),), tensors, (n, blocks), D=dim, ROWS=rows, COLUMNS=columns)
    return PooledInstances(sums.sum(0).to(h.dtype), norms)
