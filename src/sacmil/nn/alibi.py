"""ALiBi (Press et al. 2022) in three forms: for attention, for SAC blocks, and as an addition.

ALiBi is a bias on attention logits, which a mixer does not have. The paper does not say what it
did, so its ALiBi row cannot be reproduced; the last two forms here are ours.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def alibi_slopes(heads: int) -> list[float]:
    """Return 2^(-8 (h + 1) / heads) for a power of two.

    Otherwise the slopes of the next lower power, then every second one of the next higher.
    """
    power = 1 << (heads.bit_length() - 1)
    first = _geometric_slopes(power)
    return first + _geometric_slopes(2 * power)[::2][: heads - power]


def _geometric_slopes(heads: int) -> list[float]:
    return [2.0 ** (-8 * (head + 1) / heads) for head in range(heads)]


def symmetric_bias(n: int, slope: float, like: Tensor) -> Tensor:
    """Return -slope |i - j|, (N, N), in the dtype and on the device of another tensor."""
    index = torch.arange(n, dtype=torch.float32, device=like.device)
    return (index[:, None] - index).abs_().mul_(-slope).to(like.dtype)


def sac_decay(dim: int, k: int) -> Tensor:
    """Return the factors of a SAC block's channels after the forward shift, (dim,), float64.

    A bias on a logit is a factor on a contribution. Channel g of fold f has moved f steps along a
    ring of k, so its factor is exp(-m_g min(f, k - f)).
    """
    fold, channel = zip(
        *((f, g) for f in range(k) for g in range((dim - f - 1) // k + 1)), strict=True
    )
    steps = torch.tensor(fold).minimum(k - torch.tensor(fold))
    slope = torch.tensor(alibi_slopes(-(-dim // k)), dtype=torch.float64)
    return torch.exp(-slope[torch.tensor(channel)] * steps)


class ALiBiDecay(nn.Module):
    """Multiplies h by sac_decay."""

    factor: Tensor

    def __init__(self, dim: int, k: int) -> None:
        super().__init__()
        self.register_buffer("factor", sac_decay(dim, k), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        """h (N, dim), right after the forward shift."""
        return h * self.factor.to(h.dtype)


class AdditiveALiBi(nn.Module):
    """h[i, c] - m_(c mod heads) (1 - i / (N - 1)), for blocks without pairs of instances."""

    slopes: Tensor

    def __init__(self, dim: int, *, heads: int = 8) -> None:
        super().__init__()
        by_channel = torch.tensor(alibi_slopes(heads), dtype=torch.float64)[
            torch.arange(dim) % heads
        ]
        self.register_buffer("slopes", by_channel, persistent=False)

    def forward(self, h: Tensor, coords: Tensor) -> Tensor:
        """h (N, dim), in arranged order."""
        left = torch.arange(h.shape[0], dtype=torch.float64, device=h.device).flip(0)
        ramp = (left / left.amax(0).clamp(min=1)).to(h.dtype)
        return h - ramp[:, None] * self.slopes.to(h.dtype)
