"""Alternatives to the SAC block that the paper compares with; each maps (N, dim) to (N, dim)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.nn.layers import recompute_in_backward
from sacmil.nn.nystrom import NystromAttention
from sacmil.nn.positions import (
    ALiBiDecay,
    alibi_slopes,
    grid_side,
    rows_and_columns,
    symmetric_bias,
)

# --- ChordMixer (Khalitov et al. 2023): tracks rotated by powers of two ---------------------------


class ChordMixerBlock(nn.Module):
    """norm(x + rotate(MLP(prenorm(x)))).

    Args:
        dim: width of an instance.
        hidden: width inside the MLP; None means dim.
        tracks: groups of channels; None means ceil(log2 N) + 1.
    """

    def __init__(self, dim: int, *, hidden: int | None = None, tracks: int | None = None) -> None:
        super().__init__()
        self.tracks = tracks
        self.prenorm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden or dim)
        self.fc2 = nn.Linear(hidden or dim, dim)
        self.norm = nn.LayerNorm(dim)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, dim)."""
        h = self.fc2(F.gelu(self.fc1(self.prenorm(x))))
        y: Tensor = self.norm(x + chord_rotate(h, self.tracks))
        return y


def chord_rotate(x: Tensor, tracks: int | None = None) -> Tensor:
    """Rotate tracks: row i of track t comes from row i + 2^(t - 1), cyclically; track 0 stays."""
    if torch.compiler.is_compiling():  # an export would fix the number of tracks
        return _rotate_by_gather(x, tracks)
    count = max(x.shape[0] - 1, 0).bit_length() + 1 if tracks is None else tracks
    channels = x.tensor_split(count, dim=1)
    rotated = [track.roll(-(2 ** (t - 1)), 0) for t, track in enumerate(channels) if t]
    return torch.cat([channels[0], *rotated], dim=1)


def _rotate_by_gather(x: Tensor, tracks: int | None) -> Tensor:
    """Do the same with one gather, whose indices are computed from the length."""
    n, dim = x.shape
    powers = torch.pow(2, torch.arange(40, device=x.device))
    count = (powers < n).sum() + 1 if tracks is None else torch.full_like(powers[0], tracks)
    total = torch.full_like(count, dim)  # ONNX divides tensors by tensors only
    width, larger = total // count, total % count  # the first tracks are larger by one
    channel = torch.arange(dim, device=x.device)
    border = larger * (width + 1)
    beyond = larger + (channel - border) // width.clamp(min=1)
    track = torch.where(channel < border, channel // (width + 1), beyond)
    move = torch.where(track > 0, torch.pow(2, (track - 1).clamp(min=0)), 0)
    around = torch.zeros_like(move) + n  # a remainder by a number would fix the length
    return x.gather(0, (torch.arange(n, device=x.device)[:, None] + move).remainder(around))


# --- CycleMLP (Chen et al. 2022) for a sequence, on a square grid ---------------------------------


class MLP(nn.Module):
    """Linear, GELU, Linear."""

    def __init__(self, dim: int, hidden: int, out: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        """Map the last axis from dim to out."""
        y: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return y


class CycleMix(nn.Module):
    """proj(h + w + c): neighbours along a row, neighbours along a column, the instance itself.

    Args:
        dim: width of an instance.
        reweight: weight the three by a network over their mean, as officially; through that mean
            every instance reaches every other, which the paper's figures exclude.
    """

    def __init__(self, dim: int, *, reweight: bool = False) -> None:
        super().__init__()
        self.along_row, self.along_column = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.channel = nn.Linear(dim, dim, bias=False)
        self.reweight = MLP(dim, max(1, dim // 4), 3 * dim) if reweight else None
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, dim), row by row on the grid; zero outside the grid and after the bag."""
        side = grid_side(x.shape[0], x.device)
        _, column = rows_and_columns(x.shape[0], side)
        one = torch.ones_like(side)
        h = self.along_row(_shift_channels(x, one, last=column == side - 1, first=column == 0))
        outside = torch.zeros_like(column, dtype=torch.bool)
        w = self.along_column(_shift_channels(x, side, last=outside, first=outside))
        y: Tensor = self.proj(self._combine(h, w, self.channel(x)))
        return y

    def _combine(self, h: Tensor, w: Tensor, c: Tensor) -> Tensor:
        if self.reweight is None:
            return h + w + c
        weights: Tensor = self.reweight((h + w + c).mean(0)).unflatten(0, (-1, 3)).softmax(1)
        return (torch.stack((h, w, c), dim=2) * weights).sum(2)


def _shift_channels(x: Tensor, step: Tensor, *, last: Tensor, first: Tensor) -> Tensor:
    """Take channels 0, 1, 2, 3, ... from the instances 0, +1, -1, 0, ... steps away.

    Args:
        x: (N, dim).
        step: rows from one neighbour to the next.
        last: (N,), has no neighbour ahead.
        first: (N,), has no neighbour behind.
    """
    n, dim = x.shape
    index = torch.arange(n, device=x.device)
    ahead, behind = index + step, index - step
    after = x.index_select(0, ahead.clamp(max=n - 1)) * ~(last | (ahead >= n))[:, None]
    before = x.index_select(0, behind.clamp(min=0)) * ~(first | (behind < 0))[:, None]
    phase = torch.arange(dim, device=x.device) % 3
    return torch.where(phase == 0, x, torch.where(phase == 1, after, before))


class CycleBlock(nn.Module):
    """x + mix(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, dim: int, *, reweight: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mix = CycleMix(dim, reweight=reweight)
        self.mlp = MLP(dim, 4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, dim)."""
        x = x + self.mix(self.norm1(x))
        return x.add(self.mlp(self.norm2(x)))


# --- exact attention, with torch's fastest kernel for the device ----------------------------------


class SelfAttention(nn.Module):
    """(N, dim) to (N, dim).

    Args:
        dim: width of an instance.
        heads: number of attention heads, a divisor of dim.
        alibi: give more weight to nearer instances in the arranged order.
    """

    def __init__(self, dim: int, *, heads: int = 8, alibi: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.alibi = alibi
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, dim)."""
        q, k, v = self.qkv(x).unflatten(1, (3, self.heads, -1)).permute(1, 2, 0, 3)[:, None]
        attend = self._attend_with_alibi if self.alibi else F.scaled_dot_product_attention
        h = attend(q, k, v)
        y: Tensor = self.out(h[0].transpose(0, 1).flatten(1))
        return y

    def _attend_with_alibi(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # One head at a time: 20,000 instances need 1.6 GB for each N x N bias, and there is one
        # per head and layer.
        out = []
        for head, slope in enumerate(alibi_slopes(self.heads)):
            one = (t[:, head, None] for t in (q, k, v))
            out.append(recompute_in_backward(_attend_head_with_alibi, slope, *one))
        return torch.cat(out, dim=1)


def _attend_head_with_alibi(slope: float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = symmetric_bias(q.shape[2], slope, q)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


# --- the blocks by name ---------------------------------------------------------------------------


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
