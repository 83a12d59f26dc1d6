"""The smallest square that holds a sequence, padded with its first rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sacmil.nn.scatter_sum import scatter_sum


def fill_square(n: int, device: torch.device) -> Tensor:
    """Return which of the n rows is in each cell, (side * side,).

    >>> fill_square(5, torch.device("cpu")).tolist()
    [0, 1, 2, 3, 4, 0, 1, 2, 3]
    """
    side = math.isqrt(n - 1) + 1
    return torch.arange(side * side, device=device) % n


def sum_by_row(weights: Tensor, rows: Tensor, n: int) -> Tensor:
    """Sum the weights of each row over its cells, (n,).

    >>> sum_by_row(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 1, 2, 0]), 3).tolist()
    [5.0, 2.0, 3.0]
    """
    return scatter_sum(rows, weights, n)
