"""Positions from convolution: PEG (Chu et al. 2021) and PPEG (Shao et al. 2021), as in R2T-MIL."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.nn.grid import rows_and_columns, side_of


class PEG(nn.Module):
    """g + sum of depth-wise convolutions of g, the sequence on its square grid.

    What is missing from the square is filled with the first instances again, as in R2T-MIL.

    Args:
        dim: width of an instance.
        kernels: rows and columns of each convolution, the largest first; all odd.
        smallest: side that smaller grids are brought to, by zeros at the end of the sequence.
    """

    def __init__(
        self, dim: int, *, kernels: Sequence[tuple[int, int]] = ((7, 7),), smallest: int = 1
    ) -> None:
        super().__init__()
        self.smallest = smallest
        self.weights = nn.ParameterList(torch.empty(dim, 1, *size) for size in kernels)
        self.biases = nn.ParameterList(torch.zeros(dim) for _ in kernels)
        for weight in self.weights:
            nn.init.xavier_normal_(weight)

    def forward(self, h: Tensor, coords: Tensor | None = None) -> Tensor:
        """h (N, dim), in arranged order."""
        if torch.compiler.is_compiling():  # a side that depends on N is no shape for an export
            return self._by_neighbours(h)
        n, dim = h.shape
        side = math.isqrt(n - 1) + 1
        wide = max(side, self.smallest)
        h = torch.cat([h, h[: side * side - n], h.new_zeros(wide * wide - side * side, dim)])
        grid = h.reshape(1, wide, wide, dim).permute(0, 3, 1, 2)
        return self.convolve(grid)[0].permute(1, 2, 0).flatten(0, 1)[:n]

    def convolve(self, grid: Tensor) -> Tensor:
        """(B, dim, rows, columns) to the same."""
        kernel, bias = self.kernel()
        rows, columns = kernel.shape[2:]
        padding = (rows // 2, columns // 2)
        return F.conv2d(grid, kernel, bias, padding=padding, groups=kernel.shape[0])

    def kernel(self) -> tuple[Tensor, Tensor]:
        """(dim, 1, rows, columns) and (dim,): all convolutions and the identity as one."""
        rows, columns = self.weights[0].shape[2:]
        identity = torch.ones_like(self.weights[0][:, :, :1, :1])
        kernels = [_centred(weight, rows, columns) for weight in (*self.weights, identity)]
        return torch.stack(kernels).sum(0), torch.stack(list(self.biases)).sum(0)

    def _by_neighbours(self, h: Tensor) -> Tensor:
        """The same, neighbour by neighbour: no tensor has a side of the grid as its size."""
        n, (kernel, bias) = h.shape[0], self.kernel()
        side = side_of(n, h.device)
        wide = side.clamp(min=self.smallest)
        row, column = rows_and_columns(n, wide)
        out = bias.expand_as(h)
        for down in range(kernel.shape[2]):
            for right in range(kernel.shape[3]):
                r, c = row + down - kernel.shape[2] // 2, column + right - kernel.shape[3] // 2
                cell = r * wide + c
                inside = (r >= 0) & (c >= 0) & (r < wide) & (c < wide) & (cell < side * side)
                source = torch.where(cell < n, cell, cell - n).clamp(0, n - 1)
                seen = h.index_select(0, source) * inside[:, None]
                out = out + seen * kernel[:, 0, down, right]
        return out


class PPEG(PEG):
    """PEG with three sizes of kernel, on a grid of at least 7 by 7."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, kernels=((7, 7), (5, 5), (3, 3)), smallest=7)


def _centred(weight: Tensor, rows: int, columns: int) -> Tensor:
    down, right = (rows - weight.shape[2]) // 2, (columns - weight.shape[3]) // 2
    return F.pad(weight, (right, right, down, down))
