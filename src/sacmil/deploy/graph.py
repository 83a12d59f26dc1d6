"""The ONNX graph of a model: norms are folded, operations are those onnxruntime runs fast.

Importing it needs onnxscript.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from onnxscript import opset18
from torch import Tensor, nn

import sacmil.nn.peg  # noqa: F401  it registers an operation that is translated here
from sacmil.deploy.runtime import Runtime
from sacmil.encoders.onnx_file import silence_exporter, strip_metadata
from sacmil.errors import MissingExtraError, ModelError
from sacmil.models._base import MILModel
from sacmil.models.sac_mil import SACBlock
from sacmil.plans import make_plan

Array = npt.NDArray[Any]

TRACED_BAG_SIZES = (150, 260)
"""Bags that the graph is traced with; axes of their plans that differ are dynamic."""
_DOUBLE, _INT64 = 11, 7
"""Numbers of ONNX data types."""

op: Any = opset18


class _ExportWrapper(nn.Module):
    def __init__(self, model: MILModel, keys: Sequence[str]) -> None:
        super().__init__()
        self.model, self.keys = model, keys

    def forward(self, features: Tensor, coords: Tensor, *plan: Tensor) -> tuple[Tensor, ...]:
        plans = dict(zip(self.keys, plan, strict=True))
        output = self.model.compute_output(features, coords, plans)
        outputs = (self.model.probabilities(output), output.scores, output.class_scores)
        return tuple(tensor for tensor in outputs if tensor is not None)


def write_graph(model: MILModel, file: Path) -> list[str]:
    """Write the graph of a model, with its norms folded, and return the names of its inputs."""
    model = fold_norms(model)
    inputs, _ = bags = [_make_bag(n, model.in_dim) for n in TRACED_BAG_SIZES]
    planner = model.planner
    plan, other = (
        make_plan(planner.name, {**planner.options, **options}, coords, features)
        for (features, coords), options in zip(bags, planner.trace_options, strict=True)
    )
    axes: list[Any] = [{0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC}]
    if plan:
        axes.append(tuple(_find_dynamic_axes(plan[key], other[key]) for key in plan))
    names = ["features", "coords", *plan]
    try:
        with silence_exporter(), torch.no_grad():
            program = torch.onnx.export(
                _ExportWrapper(model, list(plan)),
                tuple(torch.from_numpy(array) for array in (*inputs, *plan.values())),
                dynamo=True,
                custom_translation_table=make_translation_table(),
                optimize=False,  # it removes + 1e-8 as + 0; onnxruntime optimises by itself
                verbose=False,
                input_names=names,
                output_names=list_outputs(model),
                dynamic_shapes=tuple(axes),
            )
    except ImportError as error:
        raise MissingExtraError("encoders", f"exporting {model.name}") from error
    except torch.onnx.errors.OnnxExporterError as error:
        if "installed" in str(error):
            raise MissingExtraError("encoders", f"exporting {model.name}") from None
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise ModelError(
            f"{model.name} cannot be exported with these options: torch cannot trace it for bags "
            f"of any size ({reason})"
        ) from error
    assert program is not None
    # Outside of the try block: a full disk is not an error of the exporter.
    graph = program.model_proto
    strip_metadata(graph)
    file.write_bytes(graph.SerializeToString())
    return names


def list_outputs(model: MILModel) -> list[str]:
    """Return the names of the graph's outputs."""
    features, coords = (torch.from_numpy(array) for array in _make_bag(2, model.in_dim))
    by_class = model(features, coords).class_scores is not None
    return [name_values(model), "scores", *(["class_scores"] if by_class else [])]


def name_values(model: MILModel) -> str:
    """Return the name of the graph's output with the predictions."""
    return "probabilities" if model.known_task.has_classes else "predictions"


def _find_dynamic_axes(one: Array, other: Array) -> dict[int, Any]:
    axes = range(one.ndim)
    return {a: torch.export.Dim.DYNAMIC for a in axes if one.shape[a] != other.shape[a]}


def _make_bag(n: int, dim: int) -> tuple[Array, Array]:
    """Return random features (N, D), and whole coordinates with holes in random order."""
    random = np.random.default_rng(n)
    side = math.isqrt(2 * n) + 1
    cells = random.permutation(side * side)[:n]
    coords = np.stack([cells % side, cells // side], axis=1).astype(np.float64)
    return random.standard_normal((n, dim), dtype=np.float32), coords


# --- parity


@torch.inference_mode()
def measure_difference(model: MILModel, runtime: Runtime, n: int) -> float:
    """Return the largest difference between onnxruntime and torch for a bag of n."""
    features, coords = _make_bag(n, model.in_dim)
    output = model(torch.from_numpy(features), torch.from_numpy(coords))
    expected = {name_values(model): model.probabilities(output), "scores": output.scores}
    if output.class_scores is not None:
        expected["class_scores"] = output.class_scores
    found = runtime.run(features, coords)
    return max(_relative_difference(found[name], expected[name].numpy(), name) for name in expected)


def _relative_difference(found: Array, expected: Array, name: str) -> float:
    if found.shape != expected.shape or not np.isfinite(found).all():
        return math.inf
    largest = 1.0 if name == "probabilities" else float(np.abs(expected).max()) or 1.0
    return float(np.abs(found - expected).max()) / largest


# --- folding


@torch.no_grad()
def fold_norms(model: MILModel) -> MILModel:
    """Return a copy with the same predictions and fewer operations.

    Shifting folds of channels does not change the scale of a channel, so the weight and bias of a
    SAC block's norm can move into the layer after it.
    """
    model = deepcopy(model)
    for block in model.modules():
        if isinstance(block, SACBlock) and isinstance(block.decay, nn.Identity):
            _fold_norm(block.norm, _find_first_linear(block.w1))
    return model


def _fold_norm(norm: nn.LayerNorm, layer: nn.Linear) -> None:
    """Move the parameters of the norm into the layer; layer(norm(x)) stays the same."""
    layer.bias.add_(layer.weight @ norm.bias)
    layer.weight.mul_(norm.weight)
    norm.register_parameter("weight", None)
    norm.register_parameter("bias", None)


def _find_first_linear(module: nn.Module) -> nn.Linear:
    return next(layer for layer in module.modules() if isinstance(layer, nn.Linear))


# --- translations: faster in onnxruntime than those of torch


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
    y = op.MatMul(x, op.Transpose(weight, perm=[1, 0]))
    return y if bias is None else op.Sub(y, op.Neg(bias))


def _empty_like(x: Any, dtype: int | None = None, **_: Any) -> Any:
    """Return x itself: its values will be overwritten."""
    if dtype is not None:
        raise NotImplementedError("empty_like of another dtype")
    return op.Identity(x)


def _index_copy(x: Any, dim: int, index: Any, source: Any) -> Any:
    """Copy rows to an index without the two transpositions of torch's translation."""
    if dim != 0:
        raise NotImplementedError(f"index_copy along axis {dim}; only rows, axis 0")
    axes: Any = op.Constant(value_ints=[-1])
    return op.ScatterND(x, op.Unsqueeze(index, axes), source)


def _convolve_on_square(h: Any, kernel: Any, bias: Any, smallest: int) -> Any:
    """Translate PEG (sacmil.nn.peg): lay a sequence out on a square, convolve, and flatten it."""
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
