"""Position encodings other than the paper's own: (h (N, dim), coords (N, 2)) to (N, dim).

The index of an instance is its position in the arranged order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sacmil.nn.alibi import AdditiveALiBi
from sacmil.nn.grid import grid_side, rows_and_columns
from sacmil.nn.peg import PEG, PPEG, SoftPEG
from sacmil.nn.rotary import count_channel_pairs, frequencies, rotate, wrap_angles


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
        self.pairs, self.alternating = count_channel_pairs(dim, "sinusoidal"), alternating

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
        self.pairs, self.by_halves = count_channel_pairs(dim, "rope"), half

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
        self.pairs = count_channel_pairs(dim, "rope2d", axes=2)
        self.base, self.alternating, self.slide = base, alternating, slide

    def forward(self, h: Tensor, coords: Tensor) -> Tensor:
        """h (N, dim), in arranged order; coords (N, 2), patch units."""
        positions = coords if self.slide else _grid_positions(h)
        theta = frequencies(self.pairs, self.base, h.device)
        angles = positions.double()[:, :, None] * theta  # (N, 2, dim / 4)
        angles = angles.transpose(1, 2) if self.alternating else angles
        return rotate(h, wrap_angles(angles.flatten(1)))


def _index_angles(h: Tensor, count: int) -> Tensor:
    """Return i 10000^(-t / count), (N, count), float64 within half a turn."""
    index = torch.arange(h.shape[0], dtype=torch.float64, device=h.device)
    return wrap_angles(index[:, None] * frequencies(count, 10000.0, h.device))


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
