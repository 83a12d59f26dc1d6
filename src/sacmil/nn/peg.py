"""Positions by convolution: PEG (Chu et al. 2021) and PPEG (Shao et al. 2021), as in R2T-MIL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.nn.depthwise import compute_grid_gradients, convolve_grid


class PEG(nn.Module):
    """g + sum of depth-wise convolutions of g, the sequence on its square grid.

    The square is padded with the first instances, as in R2T-MIL.

    Args:
        dim: width of an instance.
        kernels: rows and columns of each convolution, the largest first; all odd.
        smallest: minimum side of the grid; smaller ones are padded with zeros at the end.
    """

    gain = 1.0
    """Factor of the weights, and of the speed at which they are learned."""

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
        kernel, bias = self.merge_kernels()
        if not torch.compiler.is_compiling():
            return _convolve_on_square(h, kernel, bias, self.smallest)
        kernel, bias = kernel.to(h.dtype), bias.to(h.dtype)  # autocast ignores custom operations
        y: Tensor = convolve_on_square(h, kernel, bias, self.smallest)
        return y

    def convolve(self, grid: Tensor) -> Tensor:
        """Convolve a grid (B, dim, rows, columns)."""
        return convolve_grid(grid, *self.merge_kernels())

    def merge_kernels(self) -> tuple[Tensor, Tensor]:
        """Merge all convolutions and the identity: kernel (dim, 1, rows, columns), bias (dim,)."""
        count = range(len(self.weights))  # torch 2.11 cannot compile other loops over them
        weights = [self.weights[i] * self.gain for i in count]
        bias = self.biases[0] + 0  # not a sum of a stack: gradients would share their memory
        for i in count[1:]:
            bias = bias + self.biases[i]
        identity = torch.ones_like(weights[0][:, :, :1, :1])
        kernels = [_pad_centered(weight, *weights[0].shape[2:]) for weight in (*weights, identity)]
        return torch.stack(kernels).sum(0), bias


class PPEG(PEG):
    """PEG with three sizes of kernel, on a grid of at least 7 by 7."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, kernels=((7, 7), (5, 5), (3, 3)), smallest=7)


class SoftPEG(PEG):
    """PEG that starts at zero and learns a seventh as fast, because its 49 taps move together."""

    gain = 1 / 7

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        nn.init.zeros_(self.weights[0])


def _pad_centered(weight: Tensor, rows: int, columns: int) -> Tensor:
    down, right = (rows - weight.shape[2]) // 2, (columns - weight.shape[3]) // 2
    return F.pad(weight, (right, right, down, down))


def _convolve_on_square(h: Tensor, kernel: Tensor, bias: Tensor, smallest: int) -> Tensor:
    """Convolve h (N, dim) on its square."""
    return _to_sequence(convolve_grid(_to_square(h, smallest), kernel, bias))[: h.shape[0]]


def _to_square(h: Tensor, smallest: int) -> Tensor:
    """Lay h (N, dim) out on a square, (1, dim, side, side)."""
    n, dim = h.shape
    side = _square_side(n)
    wide = max(side, smallest)
    h = torch.cat([h, h[: side * side - n], h.new_zeros(wide * wide - side * side, dim)])
    return h.reshape(1, wide, wide, dim).permute(0, 3, 1, 2)


def _to_sequence(grid: Tensor) -> Tensor:
    return grid[0].permute(1, 2, 0).flatten(0, 1)


def _square_side(n: int) -> int:
    return math.isqrt(n - 1) + 1


# --- The same for compilers and exports, which do not support a side that depends on N -----------


@torch.library.custom_op("sacmil::convolve_on_square", mutates_args=())
def convolve_on_square(h: Tensor, kernel: Tensor, bias: Tensor, smallest: int) -> Tensor:
    """Convolve as one operation, which deploy/translations.py translates to ONNX."""
    return _convolve_on_square(h, kernel, bias, smallest)


@torch.library.custom_op("sacmil::convolve_on_square_backward", mutates_args=())
def _convolve_on_square_backward(
    grad: Tensor, h: Tensor, kernel: Tensor, smallest: int
) -> tuple[Tensor, Tensor, Tensor]:
    n, grid = h.shape[0], _to_square(h, smallest)
    outside = grad.new_zeros(grid.shape[2] * grid.shape[3] - n, h.shape[1])
    grads = torch.cat([grad, outside]).T.reshape(grid.shape)
    grad_grid, grad_kernel, _ = compute_grid_gradients(grid, kernel, grads)
    row = _to_sequence(grad_grid)
    repeated = row[n : _square_side(n) ** 2]  # the first instances, which pad the square
    grad_h = torch.cat([row[: len(repeated)] + repeated, row[len(repeated) : n]])
    return grad_h, grad_kernel, grad.sum(0)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    h, kernel, _, ctx.smallest = inputs
    ctx.save_for_backward(h, kernel)


def _compute_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return (*_convolve_on_square_backward(grad, *ctx.saved_tensors, ctx.smallest), None)


def _make_fake_gradients(
    grad: Tensor, h: Tensor, kernel: Tensor, smallest: int
) -> tuple[Tensor, ...]:
    return torch.empty_like(h), torch.empty_like(kernel), kernel.new_empty(len(kernel))


convolve_on_square.register_fake(lambda h, *_: torch.empty_like(h))
_convolve_on_square_backward.register_fake(_make_fake_gradients)
convolve_on_square.register_autograd(_compute_gradients, setup_context=_save_for_backward)
