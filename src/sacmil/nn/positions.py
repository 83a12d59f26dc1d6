"""Position encodings other than the paper's own: (h (N, dim), coords (N, 2)) to (N, dim).

The index of an instance is its position in the arranged order.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sacmil.errors import OptionError
from sacmil.nn.peg import PEG, PPEG, SoftPEG

# --- rotation of channel pairs, shared by all rotary positions ------------------------------------


def rotate(h: Tensor, angles: Tensor, *, half: bool = False) -> Tensor:
    """Rotate each pair (a, b) of h (N, dim) to (a cos - b sin, a sin + b cos).

    Args:
        h: features.
        angles: (N, dim / 2), float64, within half a turn of zero.
        half: pair channel t with t + dim / 2 instead of 2t with 2t + 1.
    """
    angles = angles.to(torch.promote_types(h.dtype, torch.float32))
    cos, sin = angles.cos().to(h.dtype), angles.sin().to(h.dtype)
    shape, axis = ((-1, 2, angles.shape[1]), 1) if half else ((-1, angles.shape[1], 2), 2)
    a, b = h.reshape(shape).unbind(axis)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=axis).flatten(1)


def wrap_angle(angles: Tensor) -> Tensor:
    """Wrap float64 angles to [-pi, pi], so that a later cast to float32 stays precise."""
    turns: Tensor = angles * (1 / (2 * math.pi))
    return turns.sub_(turns.round()).mul_(2 * math.pi)


def polar_angle(positions: Tensor) -> Tensor:
    """Return the angle of positions (N, 2), (N, 1); float32 in exports, for onnxruntime's atan."""
    if torch.compiler.is_compiling():
        positions = positions.float()
    return torch.atan2(positions[:, 1:], positions[:, :1])


def frequencies(count: int, base: float, device: torch.device) -> Tensor:
    """Return base^(-t / count), (count,), float64."""
    t = torch.arange(count, dtype=torch.float64, device=device)
    return torch.pow(base, -t / count)


def count_pairs(dim: int, encoding: str, *, axes: int = 1) -> int:
    """Return the number of channel pairs per axis."""
    if dim % (2 * axes):
        raise OptionError(
            f"dim={dim}; {encoding} rotates pairs of channels, expected "
            + ("an even dim" if axes == 1 else f"a multiple of {2 * axes}")
        )
    return dim // (2 * axes)


# --- a sequence laid out row by row on the smallest square that holds it --------------------------


def grid_side(n: int, device: torch.device) -> Tensor:
    """Return ceil(sqrt(n)) as a tensor (), so that one export serves all lengths.

    >>> [int(grid_side(n, torch.device("cpu"))) for n in (1, 2, 4, 5, 9, 10)]
    [1, 2, 2, 3, 3, 4]
    """
    return torch.scalar_tensor(n, dtype=torch.float64, device=device).sqrt().ceil().long()


def rows_and_columns(n: int, side: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row and column of every instance, (N,) each."""
    index = torch.arange(n, device=side.device)
    row = index.div(side, rounding_mode="floor")
    return row, index - row * side


# --- ALiBi (Press et al. 2022) for attention, for SAC blocks, and as an addition ------------------
# ALiBi is a bias on attention logits, which a mixer does not have. The paper does not say what it
# did, so its ALiBi row cannot be reproduced; the last two forms here are ours.


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
    """Return ``-slope |i - j|``, (N, N), in the dtype and on the device of another tensor."""
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


# --- the encodings --------------------------------------------------------------------------------


class NoPosition(nn.Module):
    """Returns the features unchanged."""

    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, h: Tensor, coords: Tensor) -> Tensor:
        """Return h unchanged."""
        return h


class Sinusoidal(nn.Module):
    """Vaswani et al. 2017: h + sin and cos of i theta_t.

    Args:
        dim: width of an instance.
        alternating: sin, cos, sin, cos instead of all sines, then all cosines.
    """

    def __init__(self, dim: int, *, alternating: bool = False) -> None:
        super().__init__()
        self.pairs, self.alternating = count_pairs(dim, "sinusoidal"), alternating

    def forward(self, h: Tensor, coords: Tensor) -> Tensor:
        """h (N, dim), in arranged order."""
        angles = _index_angles(h, self.pairs)
        angles = angles.to(torch.promote_types(h.dtype, torch.float32))
        waves = torch.stack((angles.sin(), angles.cos()), dim=2 if self.alternating else 1)
        return h + waves.flatten(1).to(h.dtype)


class RoPE(nn.Module):
    """Su et al. 2021: pair t rotated by i theta_t; h itself, as a mixer has no queries and keys.

    Args:
        dim: width of an instance.
        half: pair channel t with t + dim / 2 instead of 2t with 2t + 1.
    """

    def __init__(self, dim: int, *, half: bool = False) -> None:
        super().__init__()
        self.pairs, self.by_halves = count_pairs(dim, "rope"), half

    def forward(self, h: Tensor, coords: Tensor) -> Tensor:
        """h (N, dim), in arranged order."""
        return rotate(h, _index_angles(h, self.pairs), half=self.by_halves)


class RoPE2D(nn.Module):
    """Heo et al. 2024, axial: half of the pairs rotated by x, half by y.

    Args:
        dim: width of an instance.
        base: of the frequencies; 100 in the official code.
        alternating: x, y, x, y as the paper's equation has it, instead of all x, then all y.
        slide: x and y from the slide, in patches, instead of from the index on a square grid.
    """

    def __init__(
        self, dim: int, *, base: float = 100.0, alternating: bool = False, slide: bool = False
    ) -> None:
        super().__init__()
        self.pairs = count_pairs(dim, "rope2d", axes=2)
        self.base, self.alternating, self.slide = base, alternating, slide

    def forward(self, h: Tensor, coords: Tensor) -> Tensor:
        """h (N, dim), in arranged order; coords (N, 2), patch units."""
        positions = coords if self.slide else _grid_positions(h)
        theta = frequencies(self.pairs, self.base, h.device)
        angles = positions.double()[:, :, None] * theta  # (N, 2, dim / 4)
        angles = angles.transpose(1, 2) if self.alternating else angles
        return rotate(h, wrap_angle(angles.flatten(1)))


def _index_angles(h: Tensor, count: int) -> Tensor:
    """Return i 10000^(-t / count), (N, count), float64 within half a turn."""
    index = torch.arange(h.shape[0], dtype=torch.float64, device=h.device)
    return wrap_angle(index[:, None] * frequencies(count, 10000.0, h.device))


def _grid_positions(h: Tensor) -> Tensor:
    """Return column and row, (N, 2)."""
    row, column = rows_and_columns(h.shape[0], grid_side(h.shape[0], h.device))
    return torch.stack((column, row), dim=1)


POSITIONS: dict[str, Callable[[int], nn.Module]] = {
    "none": NoPosition,
    "sinusoidal": Sinusoidal,
    "alibi": AdditiveALiBi,
    "rope": RoPE,
    "rope2d": RoPE2D,
    "peg": PEG,
    "ppeg": PPEG,
    "soft_peg": SoftPEG,
}
