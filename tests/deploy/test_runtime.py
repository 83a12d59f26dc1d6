"""The runtime: torch's answers without torch, and a sentence for every spoiled folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from slide_maker import tissue_pixels, write_slide
from small_models import make_bag

from sacmil import load_model, predict, read_bag, write_bag
from sacmil.card import CARD_FILE, ONNX_FILE
from sacmil.deploy.runtime import load
from sacmil.errors import InputError, MissingExtraError, ModelFolderError

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


def run(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", WITHOUT_TORCH + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def spoiled(exported: Path, tmp_path: Path) -> Path:
    return shutil.copytree(exported, tmp_path / "copy")


def test_a_process_without_torch_gives_torchs_prediction(
    exported_sac_mil: Path, models: Callable[..., Path], tmp_path: Path
) -> None:
    bag = make_bag(150)
    write_bag(tmp_path / "bag.h5", bag)
    code = """
import json
from sacmil.deploy.runtime import load
from sacmil.formats import read_bag
answer = load(sys.argv[1], threads=1).predict(read_bag(sys.argv[2]))
print(json.dumps([answer.probabilities.tolist(), answer.scores.tolist(), answer.classes]))
"""
    found = json.loads(run(code, exported_sac_mil, tmp_path / "bag.h5"))
    wanted = predict(load_model(models("sac_mil")), bag)
    np.testing.assert_allclose(found[0], wanted.probabilities, atol=1e-4)
    np.testing.assert_allclose(found[1], wanted.scores, atol=1e-4 * wanted.scores.max())
    assert found[2] == ["a", "b", "c"]


def write_encoder(file: Path, width: int = 6, px: int = 32) -> None:
    """Mean colour of a tile, times a fixed matrix."""
    weight = np.random.default_rng(0).standard_normal((3, width)).astype(np.float32) / 255
    nodes = [
        helper.make_node("Cast", ["tiles"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "weight"], ["features"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mean-colour",
        [helper.make_tensor_value_info("tiles", TensorProto.UINT8, ["batch", px, px, 3])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", width])],
        [
            numpy_helper.from_array(np.array([1, 2]), "axes"),
            numpy_helper.from_array(weight, "weight"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, file)


def test_from_slide_to_prediction_without_torch(
    exported: Path, models: Callable[..., Path], tmp_path: Path
) -> None:
    write_slide(tmp_path / "slide.tif", tissue_pixels(512, 384), mpp=0.5)
    write_encoder(tmp_path / "colour.onnx")
    code = """
from sacmil.deploy.runtime import load
from sacmil.extraction import extract_slide
from sacmil.formats import write_bag
bag = extract_slide(sys.argv[1], encoder="onnx:" + sys.argv[2], mpp=0.5, patch_size=32)
write_bag(sys.argv[4], bag)
print(load(sys.argv[3]).predict(bag).probabilities.tolist())
"""
    places = [tmp_path / name for name in ("slide.tif", "colour.onnx", "bag.h5")]
    found = json.loads(run(code, places[0], places[1], exported, places[2]))
    wanted = predict(load_model(models("abmil")), read_bag(places[2])).probabilities
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_bags_of_another_encoder_are_rejected(exported: Path) -> None:
    with pytest.raises(InputError, match="slide-4: features are 9 wide; this abmil expects 6"):
        load(exported).predict(make_bag(4, width=9))


@pytest.mark.parametrize("field", ["classes", "notes", "export"])
def test_a_card_that_was_edited_is_noticed(spoiled: Path, field: str) -> None:
    card = json.loads((spoiled / CARD_FILE).read_text())
    if field == "export":
        card["export"]["planner"]["name"] = "square"
    else:
        card[field] = {"classes": ["c", "b", "a"], "notes": {}}[field]
    (spoiled / CARD_FILE).write_text(json.dumps(card))
    with pytest.raises(ModelFolderError, match="was changed after it was written"):
        load(spoiled)


def test_a_truncated_graph_is_noticed(spoiled: Path) -> None:
    whole = (spoiled / ONNX_FILE).read_bytes()
    (spoiled / ONNX_FILE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFolderError, match="is not the file its card was written for"):
        load(spoiled)


def test_the_graph_of_another_model_is_noticed(spoiled: Path) -> None:
    write_encoder(spoiled / ONNX_FILE)
    with pytest.raises(ModelFolderError, match="truncated or of another model"):
        load(spoiled)


def test_a_missing_graph_is_reported(spoiled: Path) -> None:
    (spoiled / ONNX_FILE).unlink()
    with pytest.raises(ModelFolderError, match=r"model\.onnx cannot be read"):
        load(spoiled)


def test_a_model_that_was_not_exported_says_what_to_do(models: Callable[..., Path]) -> None:
    with pytest.raises(ModelFolderError, match=r"is not an exported model.*sacmil\.export_model"):
        load(models("mean_pool"))


def test_without_onnxruntime_the_extra_is_named(
    exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"sacmil\[runtime\]"):
        load(exported)
