"""A small cohort of made slides, and an encoder so small that reading is what takes time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from slide_maker import tissue_pixels, write_slide

PX = 32


def write_encoder(path: Path, *, width: int = 6, seed: int = 0) -> str:
    """An ONNX encoder: mean colour of a tile, times a fixed matrix; its name for --encoder."""
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


@pytest.fixture
def encoder(tmp_path: Path) -> str:
    return write_encoder(tmp_path / "colour.onnx")


@pytest.fixture(scope="session")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three slides of 0.5 µm per pixel."""
    folder = tmp_path_factory.mktemp("cohort")
    for seed, (width, height) in enumerate([(1024, 768), (768, 768), (512, 1024)]):
        write_slide(folder / f"slide-{seed}.tif", tissue_pixels(width, height, seed), mpp=0.5)
    return folder


@pytest.fixture
def make_encoder(tmp_path: Path):
    return lambda name, **options: write_encoder(tmp_path / name, **options)
