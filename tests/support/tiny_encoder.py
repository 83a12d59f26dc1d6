"""An encoder so small that reading is what takes time: mean colour times a fixed matrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PX = 32


def write_encoder(path: Path, *, width: int = 6, seed: int = 0) -> str:
    """Write it as ONNX; its name for --encoder."""
    weight = np.random.default_rng(seed).standard_normal((3, width)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["tiles"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "weight"], ["features"]),
    ]
    inputs = [helper.make_tensor_value_info("tiles", TensorProto.UINT8, ["batch", PX, PX, 3])]
    outputs = [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", width])]
    constants = [
        numpy_helper.from_array(np.array([1, 2]), "axes"),
        numpy_helper.from_array(weight / 255, "weight"),
    ]
    graph = helper.make_graph(nodes, "mean-colour", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    onnx.save(model, path)
    return f"onnx:{path}"
