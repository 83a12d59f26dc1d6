"""Thresholds of an ordered target: CORAL's layer (Cao et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Thresholds(nn.Module):
    """Compares one score with a threshold for each step: z + b_k, the same weights for all.

    Args:
        steps: one less than the levels.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        start = torch.arange(steps, 0, -1, dtype=torch.get_default_dtype()) / steps
        self.bias = nn.Parameter(start)

    def forward(self, z: Tensor) -> Tensor:
        """z (…, 1) to (…, steps)."""
        return z + self.bias
