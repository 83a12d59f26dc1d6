"""The smallest square that holds a sequence, its end filled with the first rows again."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sacmil.nn.scatter_sum import scatter_sum


def fill_square(n: int, device: torch.device) -> Tensor:
    """(side * side,), which of the n rows stands in each cell.

    >>> fill_square(5, torch.device("cpu")).tolist()
    [0, 1, 2, 3, 4, 0, 1, 2, 3]
    """
    side = math.isqrt(n - 1) + 1
    return torch.arange(side * side, device=device) % n


def sum_by_row(weights: Tensor, rows: Tensor, n: int) -> Tensor:
    """(n,), what each row gets in all the cells it stands in.

    >>> sum_by_row(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 1, 2, 0]), 3).tolist()
    [5.0, 2.0, 3.0]
    """
    return scatter_sum(rows, weights, n)
