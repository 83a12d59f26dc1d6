"""A SAC block on a CPU where no gradient is asked for: some rings at a time, in memory used again.

What the plain path writes for the whole bag is written for a piece that stays in the processor's
cache; rows of one fold each are taken from where they stand, by indices that pieces share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sacmil.kernels.config import is_enabled
from sacmil.kernels.sac_block import FoldShift, has_standard_options

CHUNK_ROWS = 2048
"""Rows of a piece, or one ring, where that is longer."""


def supports(block: Any, x: Tensor) -> bool:
    """Whether there is a faster way for a SACBlock with these options, and for x."""
    here = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    asked = is_enabled() and not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return has_standard_options(block, x.shape[1]) and here and asked


def correlate(block: Any, x: Tensor) -> Tensor:
    """x + W2 unshift(GELU(W1 shift(LN(x)))), with a SACBlock's parameters."""
    out = x.clone(memory_format=torch.contiguous_format)
    room: dict[int, _ChunkBuffers] = {}
    for rows in split_at_rings(len(x), block.k ** (block.level + 1), CHUNK_ROWS):
        length = rows.stop - rows.start
        if length not in room:
            room = {length: _ChunkBuffers(block, x, length)}
        room[length].add_block_output(out[rows])
    return out


def split_at_rings(n: int, ring: int, chunk_rows: int) -> Iterator[slice]:
    """Pieces of a bag, of whole rings each; the last has what is left over."""
    each = max(1, chunk_rows // ring) * ring
    starts = range(0, max(n - each, 0) + 1, each)
    for start in starts:
        yield slice(start, n if start == starts[-1] else start + each)


class _ChunkBuffers:
    """Indices and memory for pieces of one length.

    Args:
        block: a SACBlock.
        x: rows like those of the pieces.
        length: of a piece.
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
        """What the block adds to a piece."""
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
    """(N k,): which row of one fold each comes to a place, from as many steps onward or back."""
    small = shift.n * shift.k < 2**31
    i = torch.arange(shift.n, dtype=torch.int32 if small else torch.int64)[:, None]
    folds = torch.arange(shift.k, dtype=i.dtype)
    absorbed = 1 if shift.absorb else 0
    last = max(shift.n // shift.ring - absorbed, 0) * shift.ring
    start = (i // shift.ring * shift.ring).clamp(max=last)
    left = shift.n - start
    size = torch.where(left < (1 + absorbed) * shift.ring, left, shift.ring)
    away = folds * shift.step
    source = (i - start + (away if forward else -away)).remainder(size)
    return ((start + source) * shift.k + folds).flatten()
