"""ONNX translations that run faster in onnxruntime than those of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

import sacmil.nn.peg  # noqa: F401  it registers an operation that is translated here

_DOUBLE, _INT64 = 11, 7
"""Numbers of ONNX data types."""


def make_translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the custom_translation_table for torch.onnx.export."""
    return {
        torch.ops.aten.layer_norm.default: _layer_norm,
        torch.ops.aten.linear.default: _linear,
        torch.ops.aten.empty_like.default: _empty_like,
        torch.ops.aten.index_copy.default: _index_copy,
        torch.ops.sacmil.convolve_on_square.default: _convolve_on_square,
    }


def _layer_norm(
    x: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = False,  # noqa: FBT001, FBT002  torch's signature
) -> Any:
    """Translate to sums and products: onnxruntime's own node adds up a row number by number.

    Its vectorised reductions take less than a third of the time.
    """
    from onnxscript import opset18 as op

    width = math.prod(normalized_shape)
    axes: Any = op.Constant(value_ints=list(range(-len(normalized_shape), 0)))
    centred = op.Sub(x, op.ReduceMean(x, axes))
    # Sums instead of means: the usual pattern would be fused into the slow node again.
    squares = op.ReduceSum(op.Mul(centred, centred), axes)
    squares = op.Add(squares, op.Constant(value_float=eps * width))
    y = op.Mul(centred, op.Div(op.Constant(value_float=math.sqrt(width)), op.Sqrt(squares)))
    y = y if weight is None else op.Mul(y, weight)
    return y if bias is None else op.Add(y, bias)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Subtract the negative bias: an added one would be fused into the product.

    There onnxruntime first copies it to every row, which takes twice the time.
    """
    from onnxscript import opset18 as op

    y = op.MatMul(x, op.Transpose(weight, perm=[1, 0]))
    return y if bias is None else op.Sub(y, op.Neg(bias))


def _empty_like(x: Any, dtype: int | None = None, **_: Any) -> Any:
    """Return x itself: its values will be overwritten."""
    from onnxscript import opset18 as op

    if dtype is not None:
        raise NotImplementedError("empty_like of another dtype")
    return op.Identity(x)


def _index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    """Copy rows to an index without the two transpositions of torch's translation."""
    from onnxscript import opset18 as op

    if dim != 0:
        raise NotImplementedError(f"index_copy along axis {dim}; only rows, axis 0")
    axes: Any = op.Constant(value_ints=[-1])
    return op.ScatterND(x, op.Unsqueeze(index, axes), source)


def _convolve_on_square(h: Any, kernel: Any, bias: Any, smallest: int) -> Any:
    """Translate PEG (sacmil.nn.peg): lay a sequence out on a square, convolve, and flatten it."""
    from onnxscript import opset18

    op: Any = opset18
    dim, _, rows, columns = (int(size) for size in kernel.shape)
    zero = op.Constant(value_ints=[0])
    length = op.Shape(h, start=0, end=1)
    side = op.Cast(op.Ceil(op.Sqrt(op.Cast(length, to=_DOUBLE))), to=_INT64)
    wide = op.Max(side, op.Constant(value_ints=[smallest]))
    cells, wanted = op.Mul(side, side), op.Mul(wide, wide)
    filled = op.Concat(h, op.Slice(h, zero, op.Sub(cells, length), zero), axis=0)
    if smallest > 1:
        filled = op.Pad(filled, op.Concat(zero, zero, op.Sub(wanted, cells), zero, axis=0))
    shape = op.Concat(op.Constant(value_ints=[1, dim]), wide, wide, axis=0)
    square = op.Reshape(op.Transpose(filled, perm=[1, 0]), shape)
    pads = [rows // 2, columns // 2, rows // 2, columns // 2]
    square = op.Conv(square, kernel, bias, group=dim, pads=pads)
    row = op.Transpose(op.Reshape(square, op.Constant(value_ints=[dim, -1])), perm=[1, 0])
    return op.Slice(row, zero, length, zero)
