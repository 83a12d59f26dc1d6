"""A sequence laid out row by row on the smallest square grid that holds it."""

from __future__ import annotations

import torch
from torch import Tensor


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
