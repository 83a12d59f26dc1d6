"""CycleMLP (Chen et al. 2022) for a sequence: laid out on a square grid, mixed along both axes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.nn.grid import grid_side, rows_and_columns


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
