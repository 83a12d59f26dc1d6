"""Alternatives to the SAC block that the paper compares with; each maps (N, dim) to (N, dim)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn

from sacmil.nn.alibi import ALiBiDecay
from sacmil.nn.chordmixer import ChordMixerBlock
from sacmil.nn.cyclemlp import CycleBlock
from sacmil.nn.nystrom import NystromAttention
from sacmil.nn.self_attention import SelfAttention


class Residual(nn.Module):
    """x + inner(norm(x))."""

    def __init__(self, dim: int, inner: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """x (N, dim)."""
        return x.add(self.inner(self.norm(x)))


def choose_heads(dim: int) -> int:
    """Return the largest divisor of dim up to eight.

    >>> choose_heads(512), choose_heads(70), choose_heads(7), choose_heads(11)
    (8, 7, 7, 1)
    """
    return next(heads for heads in range(8, 0, -1) if dim % heads == 0)


def make_nystrom_block(dim: int) -> nn.Module:
    """Return a residual block of Nystrom attention."""
    return Residual(dim, NystromAttention(dim, heads=choose_heads(dim)))


def make_attention_block(dim: int) -> nn.Module:
    """Return a residual block of exact attention."""
    return Residual(dim, SelfAttention(dim, heads=choose_heads(dim)))


def insert_alibi(blocks: Iterable[nn.Module], dim: int, k: int) -> bool:
    """Put ALiBi into blocks that support it; return whether any does.

    Exact attention has logits to bias; a SAC block has a ``decay`` for its shifted channels.
    """
    inserted = False
    for block in blocks:
        if hasattr(block, "decay"):
            block.decay, inserted = ALiBiDecay(dim, k), True
        elif isinstance(block, Residual) and isinstance(block.inner, SelfAttention):
            block.inner.alibi, inserted = True, True
    return inserted


CORRELATION_BLOCKS: dict[str, Callable[[int], nn.Module]] = {
    "chordmixer": ChordMixerBlock,
    "cyclemlp": CycleBlock,
    "nystrom": make_nystrom_block,
    "attention": make_attention_block,
}
