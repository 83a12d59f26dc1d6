"""Names of encoders are listed, suggested and described; inputs are checked."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sacmil.encoders import describe_encoder, list_encoders, list_families, load_encoder
from sacmil.encoders._base import EncoderRequest
from sacmil.encoders._network import NetworkSource
from sacmil.errors import EncoderError, SacMILError


def test_all_documented_encoders_are_listed() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "extract.md"
    rows = re.findall(r"^\| (`.*?`.*?) \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`([a-z0-9_]+)`", row)}
    assert set(list_encoders()) == documented & set(list_encoders())
    assert set(list_families()) == {"timm:", "onnx:"}


@pytest.mark.parametrize("name", list_encoders())
def test_every_card_is_complete(name: str) -> None:
    card = describe_encoder(name)
    assert card.name == name
    assert card.resample in ("bilinear", "bicubic")
    assert all(0 < value < 1 for value in (*card.mean, *card.std))
    assert 0.1 < card.mpp < 2
    assert card.license
    assert card.weights
    assert card.pooling


def test_the_error_for_an_unknown_name_suggests_others() -> None:
    with pytest.raises(EncoderError, match=r"did you mean 'uni_v1'.*onnx:.* and timm:"):
        load_encoder("uni_1")


def test_listing_and_describing_load_no_torch() -> None:
    code = """
import sys
from sacmil.encoders import describe_encoder, find_encoder_weights, list_encoders
for name in list_encoders():
    describe_encoder(name)
assert not {"torch", "timm", "onnxruntime", "onnx"} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "tensorflow"}, "no engine 'tensorflow'; known are: onnxruntime, torch"),
        ({"precision": "float"}, "no precision 'float'; did you mean 'float32' or 'float16'"),
        ({"precision": "float16", "engine": "onnxruntime"}, "computes in float32, not float16"),
        ({"device": "gpu"}, "the device 'gpu' cannot be used .*sacmil doctor"),
        ({"device": "cuda:77"}, "the device 'cuda:77' cannot be used"),
        ({"device": "cuda:77", "engine": "onnxruntime"}, "onnxruntime cannot use the device"),
    ],
)
def test_unsupported_options_are_rejected(
    tiny: NetworkSource, options: dict[str, str], message: str
) -> None:
    with pytest.raises(SacMILError, match=message):
        tiny.load(EncoderRequest(random_weights=True, **options))


@pytest.mark.parametrize("engine", ["torch", "onnxruntime"])
@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((1, 32, 32, 3), np.float32),
        np.zeros((1, 3, 32, 32), np.uint8),
        np.zeros((32, 32, 3), np.uint8),
        np.zeros((1, 31, 32, 3), np.uint8),
        np.zeros((1, 32, 32, 4), np.uint8),
    ],
)
def test_tiles_of_the_wrong_type_or_shape_are_rejected(
    tiny: NetworkSource, engine: str, wrong: np.ndarray
) -> None:
    encoder = tiny.load(EncoderRequest(random_weights=True, engine=engine))
    with pytest.raises(EncoderError, match=r"expected \(B, 32, 32, 3\) of uint8"):
        encoder.encode(wrong)


@pytest.mark.parametrize("engine", ["torch", "onnxruntime"])
def test_features_do_not_depend_on_the_memory_layout_of_tiles(
    tiny: NetworkSource, engine: str, make_tiles: Callable
) -> None:
    encoder = tiny.load(EncoderRequest(random_weights=True, engine=engine))
    tiles = make_tiles(4, 32)
    expected = encoder.encode(tiles)
    frozen = tiles.copy()
    frozen.flags.writeable = False
    transposed = tiles.transpose(3, 2, 1, 0).copy().transpose(3, 2, 1, 0)
    for other in (frozen, transposed, np.repeat(tiles, 2, axis=0)[::2]):
        assert np.array_equal(encoder.encode(other), expected)
    assert encoder.encode(tiles[:0]).shape == (0, 8)
    assert expected.dtype == np.float32


def test_half_precision_is_close_to_single_precision(
    tiny: NetworkSource, make_tiles: Callable, difference: Callable
) -> None:
    tiles = make_tiles(4, 32)
    single = tiny.load(EncoderRequest(random_weights=True)).encode(tiles)
    for precision in ("bfloat16", "float16"):
        half = tiny.load(EncoderRequest(random_weights=True, precision=precision)).encode(tiles)
        assert 0 < difference(half, single) < 0.03
