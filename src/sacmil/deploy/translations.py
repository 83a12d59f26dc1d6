"""Operations that onnxruntime does faster than as torch would write them into a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """What torch.onnx.export takes as custom_translation_table."""
    return {
        torch.ops.aten.layer_norm.default: _layer_norm,
        torch.ops.aten.index_copy.default: _index_copy,
    }


def _layer_norm(
    x: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = False,  # noqa: FBT001, FBT002  torch's signature
) -> Any:
    """In sums and products: onnxruntime's own node adds a row up number by number.

    Its vectorised reductions take less than half the time.
    """
    from onnxscript import opset18 as op

    width = math.prod(normalized_shape)
    axes: Any = op.Constant(value_ints=list(range(-len(normalized_shape), 0)))
    centred = op.Sub(x, op.ReduceMean(x, axes))
    # Of sums rather than means: the usual pattern would be fused into the slow node again.
    squares = op.Add(op.ReduceSumSquare(centred, axes), op.Constant(value_float=eps * width))
    y = op.Mul(centred, op.Div(op.Constant(value_float=math.sqrt(width)), op.Sqrt(squares)))
    y = y if weight is None else op.Mul(y, weight)
    return y if bias is None else op.Add(y, bias)


def _index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    """Rows put where an index says, as they lie: torch would turn them over first, and back."""
    from onnxscript import opset18 as op

    if dim != 0:
        raise NotImplementedError(f"index_copy along axis {dim}; only rows, axis 0")
    axes: Any = op.Constant(value_ints=[-1])
    return op.ScatterND(x, op.Unsqueeze(index, axes), source)
