"""A SAC block on a CPU without gradients: a few rings at a time, in reused buffers.

The plain path writes intermediate results for the whole bag. Here they are written for a chunk that
fits in the CPU's cache. All chunks share the indices that gather the folds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sacmil.kernels.config import is_enabled
from sacmil.kernels.sac_block import FoldShift, has_standard_options

CHUNK_ROWS = 2048
"""Rows of a chunk, or one ring if that is longer."""


def supports(block: Any, x: Tensor) -> bool:
    """Whether this fast path supports a SACBlock with these options, and x."""
    on_cpu = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    is_inference = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return has_standard_options(block, x.shape[1]) and on_cpu and is_inference and is_enabled()


def correlate(block: Any, x: Tensor) -> Tensor:
    """Return x + W2 unshift(GELU(W1 shift(LN(x)))), with a SACBlock's parameters."""
    out = x.clone(memory_format=torch.contiguous_format)
    buffers: dict[int, _ChunkBuffers] = {}
    for rows in split_at_rings(len(x), block.k ** (block.level + 1), CHUNK_ROWS):
        length = rows.stop - rows.start
        if length not in buffers:
            buffers = {length: _ChunkBuffers(block, x, length)}
        buffers[length].add_block_output(out[rows])
    return out


def split_at_rings(n: int, ring: int, chunk_rows: int) -> Iterator[slice]:
    """Yield chunks of a bag, each of whole rings; the last includes the remainder."""
    step = max(1, chunk_rows // ring) * ring
    starts = range(0, max(n - step, 0) + 1, step)
    for start in starts:
        yield slice(start, n if start == starts[-1] else start + step)


class _ChunkBuffers:
    """Indices and buffers for chunks of one length.

    Args:
        block: a SACBlock.
        x: gives dtype and width of the chunks.
        length: of a chunk.
    """

    def __init__(self, block: Any, x: Tensor, length: int) -> None:
        self.block = block
        shift = FoldShift.for_block(block, length)
        self.shift_rows, self.unshift_rows = (
            make_gather_indices(shift, forward=False),
            make_gather_indices(shift, forward=True),
        )
        self.first_buffer, self.second_buffer = x.new_empty(2, length, x.shape[1])

    def add_block_output(self, x: Tensor) -> None:
        """Add the output of the block to a chunk."""
        norm, w1, w2 = self.block.norm, self.block.w1, self.block.w2
        self._gather_folds(self.shift_rows, norm(x), self.first_buffer)
        torch.addmm(w1.bias, self.first_buffer, w1.weight.t(), out=self.second_buffer)
        torch.ops.aten.gelu_(self.second_buffer)
        self._gather_folds(self.unshift_rows, self.second_buffer, self.first_buffer)
        x.add_(torch.addmm(w2.bias, self.first_buffer, w2.weight.t(), out=self.second_buffer))

    def _gather_folds(self, rows: Tensor, x: Tensor, out: Tensor) -> None:
        width = x.shape[1] // self.block.k
        torch.index_select(x.view(-1, width), 0, rows, out=out.view(-1, width))


def make_gather_indices(shift: FoldShift, *, forward: bool) -> Tensor:
    """Return the source row of each fold, (N k,), shifted forward or backward."""
    small = shift.n * shift.k < 2**31
    i = torch.arange(shift.n, dtype=torch.int32 if small else torch.int64)[:, None]
    folds = torch.arange(shift.k, dtype=i.dtype)
    absorbed = 1 if shift.absorb else 0
    last = max(shift.n // shift.ring - absorbed, 0) * shift.ring
    start = (i // shift.ring * shift.ring).clamp(max=last)
    left = shift.n - start
    size = torch.where(left < (1 + absorbed) * shift.ring, left, shift.ring)
    distance = folds * shift.step
    source = (i - start + (distance if forward else -distance)).remainder(size)
    return ((start + source) * shift.k + folds).flatten()
