"""Depth-wise convolutions with gradients that are matrix products.

Torch's own gradients take most of a training step of TransMIL on a GPU. On some processors the one
of a (33, 1) kernel is wrong by some percent for every fifteenth number of rows: 46, 61, … 256, …
4,096 (torch 2.13). Here a row is split into blocks. The product of a block with its input window
has the gradient of each tap on its diagonals.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

BLOCK_SIZE = 16
"""Cells of a block in a grid row: twice the width of kernels."""
LONG_BLOCK_SIZE = 64
"""Rows of a block: twice the length of kernels of 33."""


def convolve_grid(grid: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Convolve (B, dim, rows, columns) with a kernel (dim, 1, odd, odd), and add a bias (dim,)."""
    if torch.compiler.is_compiling():  # torch's gradient is right here, and compilers know it
        return _conv2d_depthwise(grid, kernel, bias)
    y: Tensor = _GridConvolution.apply(grid, kernel, bias)  # type: ignore[no-untyped-call]
    return y


def convolve_rows(x: Tensor, taps: Tensor) -> Tensor:
    """Convolve each column of (dim, rows, columns) with the taps (dim, odd) of its channel."""
    if torch.compiler.is_exporting():  # the number of blocks would be fixed
        return _conv2d_depthwise(x[None], taps[:, None, :, None], None)[0]
    if torch.compiler.is_compiling():
        return _convolve_rows(x, taps)
    y: Tensor = _RowConvolution.apply(x, taps)  # type: ignore[no-untyped-call]
    return y


# --- on a grid ------------------------------------------------------------------------------------


class _GridConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grid: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(grid, kernel)
        return _conv2d_depthwise(grid, kernel, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        grid, kernel = ctx.saved_tensors
        return compute_grid_gradients(grid, kernel, grad)


def compute_grid_gradients(
    grid: Tensor, kernel: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of grid, kernel and bias; with autocast their dtypes may differ."""
    grad_grid = _conv2d_depthwise(grad, kernel.to(grad.dtype).flip(2, 3), None)
    grad_kernel = _compute_kernel_gradient(grid.to(grad.dtype), kernel, grad)
    grad_bias = grad.sum((0, 2, 3), dtype=kernel.dtype)
    return grad_grid.to(grid.dtype), grad_kernel.to(kernel.dtype), grad_bias


def _conv2d_depthwise(grid: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    return F.conv2d(grid, kernel, bias, padding=_padding(kernel), groups=kernel.shape[0])


def _padding(kernel: Tensor) -> list[int]:
    return [size // 2 for size in kernel.shape[2:]]


def _compute_kernel_gradient(grid: Tensor, kernel: Tensor, grad: Tensor) -> Tensor:
    """Compute the gradient row by row of the kernel."""
    (dim, _, rows, columns), (down, right) = kernel.shape, _padding(kernel)
    height, missing = grad.shape[2], -grad.shape[3] % BLOCK_SIZE
    padded = F.pad(grid.contiguous(), (right, right + missing, down, down)).transpose(0, 1)
    windows = padded.unfold(3, BLOCK_SIZE + columns - 1, BLOCK_SIZE)
    blocks = F.pad(grad.contiguous(), (0, missing)).transpose(0, 1).reshape(dim, -1, BLOCK_SIZE).mT
    by_row = (windows[:, :, row : row + height].flatten(1, 3) for row in range(rows))
    return torch.stack([_sum_diagonals(blocks @ each, columns) for each in by_row], 1)[:, None]


# --- along rows -----------------------------------------------------------------------------------


class _RowConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor) -> Tensor:
        ctx.save_for_backward(x, taps)
        return _convolve_rows(x, taps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, taps = ctx.saved_tensors
        products = _make_blocks(grad) @ _make_windows(x.to(grad.dtype), taps.shape[1]).mT
        grad_taps = _sum_diagonals(products, taps.shape[1]).to(taps.dtype)
        return _convolve_rows(grad, taps.flip(1)).to(x.dtype), grad_taps


def _convolve_rows(x: Tensor, taps: Tensor) -> Tensor:
    dim, rows, columns = x.shape
    blocks = _make_band_matrix(taps.to(x.dtype)) @ _make_windows(x, taps.shape[1])
    return blocks.reshape(dim, LONG_BLOCK_SIZE, -1, columns).transpose(1, 2).flatten(1, 2)[:, :rows]


def _make_windows(x: Tensor, taps: int) -> Tensor:
    """Return the input window of each block, (dim, rows of a window, windows · columns)."""
    half, missing = taps // 2, -x.shape[1] % LONG_BLOCK_SIZE
    padded = F.pad(x, (0, 0, half, half + missing))
    windows = padded.unfold(1, LONG_BLOCK_SIZE + taps - 1, LONG_BLOCK_SIZE)
    return windows.permute(0, 3, 1, 2).flatten(2)


def _make_blocks(x: Tensor) -> Tensor:
    """Split rows into blocks, (dim, rows of a block, blocks · columns)."""
    padded = F.pad(x, (0, 0, 0, -x.shape[1] % LONG_BLOCK_SIZE))
    return padded.reshape(x.shape[0], -1, LONG_BLOCK_SIZE, x.shape[2]).transpose(1, 2).flatten(2)


# --- between taps and matrices --------------------------------------------------------------------


def _make_band_matrix(taps: Tensor) -> Tensor:
    """Return the matrix that maps a window to a block, (dim, block, window), taps on diagonals."""
    dim, count = taps.shape
    window = LONG_BLOCK_SIZE + count - 1
    rows = F.pad(taps, (0, window + 1 - count))[:, None].expand(-1, LONG_BLOCK_SIZE, -1)
    return rows.flatten(1)[:, : LONG_BLOCK_SIZE * window].reshape(dim, LONG_BLOCK_SIZE, window)


def _sum_diagonals(products: Tensor, count: int) -> Tensor:
    """Sum the diagonals that hold taps, (dim, block, window) to (dim, count)."""
    dim, block, window = products.shape
    skewed = F.pad(products.flatten(1), (0, block)).reshape(dim, block, window + 1)
    return skewed[:, :, :count].sum(1)
