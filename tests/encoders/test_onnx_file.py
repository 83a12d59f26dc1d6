"""onnx:FILE: with a card, without one, and rejected options."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from sacmil.encoders import describe_encoder, find_encoder_weights, load_encoder
from sacmil.encoders.onnx_file import GRAPH_FILE, card_path
from sacmil.errors import EncoderError
from sacmil.extraction.slide_request import make_encoder_info


def write_graph(file: Path, *, kind: int, shape: list[object], out: list[object]) -> Path:
    """A graph that averages over the two middle axes."""
    axes = helper.make_node(
        "ReduceMean", ["float"], ["features"], axes=[1, 2], keepdims=len(out) // 4
    )
    graph = helper.make_graph(
        [helper.make_node("Cast", ["tiles"], ["float"], to=TensorProto.FLOAT), axes],
        "mean",
        [helper.make_tensor_value_info("tiles", kind, shape)],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, out)],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    return file


def test_a_file_without_card_is_described_by_its_shapes(tmp_path: Path) -> None:
    file = write_graph(
        tmp_path / "own.onnx", kind=TensorProto.UINT8, shape=["B", 16, 16, 3], out=["B", 3]
    )
    card = describe_encoder(f"onnx:{file}")
    assert (card.name, card.width, card.input_px) == ("onnx:own.onnx", 3, 16)
    tiles = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3), np.uint8)
    encoder = load_encoder(f"onnx:{file}")
    np.testing.assert_allclose(encoder.encode(tiles), tiles.mean((1, 2)), rtol=1e-5)
    assert len(encoder.hash) == 16
    assert encoder.file_sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert make_encoder_info(encoder).file_sha256 == encoder.file_sha256


def test_features_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["tiles"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Log", ["float"], ["log"]),
        helper.make_node("ReduceMean", ["log"], ["features"], axes=[1, 2], keepdims=0),
    ]
    tiles = helper.make_tensor_value_info("tiles", TensorProto.UINT8, ["B", 4, 4, 3])
    features = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["B", 3])
    graph = helper.make_graph(nodes, "log", [tiles], [features])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, tmp_path / "own.onnx")
    encoder = load_encoder(f"onnx:{tmp_path / 'own.onnx'}")
    assert encoder.encode(np.ones((1, 4, 4, 3), np.uint8)).tolist() == [[0, 0, 0]]
    with pytest.raises(EncoderError, match=r"onnx:own.onnx gives NaN or infinity; expected finite"):
        encoder.encode(np.zeros((1, 4, 4, 3), np.uint8))


@pytest.mark.parametrize(
    ("kind", "shape", "out", "missing"),
    [
        (TensorProto.FLOAT, ["B", 16, 16, 3], ["B", 3], r"an input of uint8 \(B, P, P, 3\)"),
        (TensorProto.UINT8, ["B", 3, 16, 16], ["B", 16], r"an input of uint8 \(B, P, P, 3\)"),
        (TensorProto.UINT8, ["B", "H", "W", 3], ["B", 3], "its side P as a number"),
        (TensorProto.UINT8, ["B", 16, 12, 3], ["B", 3], "its side P as a number"),
        (TensorProto.UINT8, ["B", 16, 16, 3], ["B", 1, 1, 3], "the width as a number"),
    ],
)
def test_a_file_without_card_and_without_clear_shapes_is_rejected(
    tmp_path: Path, kind: int, shape: list[object], out: list[object], missing: str
) -> None:
    file = write_graph(tmp_path / "own.onnx", kind=kind, shape=shape, out=out)
    with pytest.raises(EncoderError, match=f"no card own.onnx.json.*missing.*{missing}"):
        load_encoder(f"onnx:{file}")


def test_file_and_folder_name_the_same_encoder(exported: Path) -> None:
    assert find_encoder_weights(f"onnx:{exported}") == find_encoder_weights(
        f"onnx:{exported / GRAPH_FILE}"
    )


def test_a_card_of_another_file_is_rejected(exported: Path, tmp_path: Path) -> None:
    other = write_graph(
        tmp_path / "own.onnx", kind=TensorProto.UINT8, shape=["B", 32, 32, 3], out=["B", 3]
    )
    shutil.copy(card_path(exported / GRAPH_FILE), card_path(other))
    with pytest.raises(EncoderError, match=r"not the file its card own.onnx.json describes"):
        load_encoder(f"onnx:{other}")


@pytest.mark.parametrize(
    "damage",
    [
        lambda card: card["encoder"].pop("width"),
        lambda card: card["encoder"].update(width="8"),
        lambda card: card["encoder"].update(mean=None),
        lambda card: card["encoder"].update(colour="red"),
        lambda card: card.update(encoder=[]),
        lambda card: card.update(schema_version=99),
        lambda card: card.pop("onnx_hash"),
        lambda card: card["encoder"].update(width=9),
    ],
)
def test_a_damaged_card_is_an_error_that_names_the_file(exported: Path, damage) -> None:
    file = card_path(exported / GRAPH_FILE)
    card = json.loads(file.read_text())
    damage(card)
    file.write_text(json.dumps(card))
    with pytest.raises(EncoderError, match=r"encoder.onnx"):
        load_encoder(f"onnx:{exported}")


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000])
def test_a_file_that_is_no_card_is_an_error(exported: Path, text: str) -> None:
    card_path(exported / GRAPH_FILE).write_text(text)
    with pytest.raises(EncoderError, match="not the card of an encoder"):
        load_encoder(f"onnx:{exported}")


def test_mutated_graphs_without_card_load_or_give_an_encoder_error(exported: Path) -> None:
    card_path(exported / GRAPH_FILE).unlink()
    content = (exported / GRAPH_FILE).read_bytes()
    rng = random.Random(0)
    for _ in range(40):
        broken = bytearray(content)
        for _ in range(rng.randint(1, 8)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        (exported / GRAPH_FILE).write_bytes(
            broken[: rng.choice([len(broken), len(broken) // 2, 0])]
        )
        try:
            load_encoder(f"onnx:{exported}")
        except EncoderError as error:
            assert "encoder.onnx" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "torch"},
        {"precision": "float16"},
        {"weights": "w.pth"},
        {"random_weights": True},
        {"device": "cuda:0"},
    ],
)
def test_options_that_an_onnx_file_does_not_support_are_rejected(
    exported: Path, options: dict[str, object]
) -> None:
    with pytest.raises(EncoderError, match="cannot"):
        load_encoder(f"onnx:{exported}", **options)


def test_the_error_for_a_missing_file_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"no such file.*sacmil export writes"):
        load_encoder(f"onnx:{tmp_path / 'none.onnx'}")
