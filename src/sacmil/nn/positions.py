"""Position encodings other than the paper's own: (h (N, dim), coords (N, 2)) to (N, dim)."""

from __future__ import annotations

from torch import Tensor, nn


class NoPosition(nn.Module):
    """Leaves the features as they are."""

    def __init__(self, dim: int, scale: float) -> None:
        super().__init__()

    def forward(self, h: Tensor, coords: Tensor) -> Tensor:
        """h, unchanged."""
        return h
