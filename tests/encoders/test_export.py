"""Export of encoders: graph and card agree with torch, and no partial files are left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import sacmil
from sacmil.encoders import export_encoder, load_encoder, onnx_file
from sacmil.encoders._base import EncoderRequest
from sacmil.encoders._network import NetworkSource
from sacmil.encoders.onnx_file import GRAPH_FILE, card_path
from sacmil.errors import EncoderError


def check_no_paths(graph: Path) -> None:
    stored = graph.read_bytes()
    for path in (str(Path(sacmil.__file__).parent), "site-packages"):
        assert path.encode() not in stored


def test_an_exported_encoder_holds_no_path_of_this_machine(exported: Path) -> None:
    check_no_paths(exported / GRAPH_FILE)


def test_the_exported_encoder_gives_the_same_features(
    tiny: NetworkSource, exported: Path, difference: Callable, make_tiles: Callable
) -> None:
    by_torch = tiny.load(EncoderRequest(random_weights=True, engine="torch"))
    by_onnx = load_encoder(f"onnx:{exported}")
    assert (by_onnx.card, by_onnx.hash) == (by_torch.card, by_torch.hash)
    for count in (1, 2, 9):
        tiles = make_tiles(count, 32, seed=count)
        assert difference(by_onnx.encode(tiles), by_torch.encode(tiles)) < 1e-5


@pytest.mark.slow
def test_the_newer_exporter_gives_the_same_with_weights_beside_the_graph(
    tiny: NetworkSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_tiles: Callable
) -> None:
    monkeypatch.setattr(onnx_file, "_MAX_ONE_FILE_BYTES", 0)
    folder = tiny.export(EncoderRequest(random_weights=True), tmp_path / "large")
    assert (folder / f"{GRAPH_FILE}.data").exists()
    check_no_paths(folder / GRAPH_FILE)
    by_torch = tiny.load(EncoderRequest(random_weights=True, engine="torch"))
    tiles = make_tiles(5, 32)
    found = load_encoder(f"onnx:{folder}").encode(tiles)
    np.testing.assert_allclose(found, by_torch.encode(tiles), rtol=1e-4, atol=1e-5)
    data = (folder / f"{GRAPH_FILE}.data").read_bytes()
    (folder / f"{GRAPH_FILE}.data").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(EncoderError, match="not the file its card"):
        load_encoder(f"onnx:{folder}")


def test_a_graph_that_differs_from_torch_is_not_written(
    tiny: NetworkSource, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {file.name: file.read_bytes() for file in exported.iterdir()}
    monkeypatch.setattr(onnx_file, "PARITY_TOLERANCE", 0.0)
    with pytest.raises(EncoderError, match=r"differs from torch by .*nothing was written"):
        tiny.export(EncoderRequest(random_weights=True), exported)
    assert {file.name: file.read_bytes() for file in exported.iterdir()} == before
    assert list(exported.parent.glob(".*partial")) == []


def test_an_interrupted_export_leaves_no_folder(
    tiny: NetworkSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(onnx_file, "_check_parity", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tiny.export(EncoderRequest(random_weights=True), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_card_states_versions_and_hashes_of_the_graph(exported: Path) -> None:
    card = json.loads(card_path(exported / GRAPH_FILE).read_text())
    assert card["torch_version"] == torch.__version__
    assert card["weights_hash"] == "random"
    assert 0 <= card["difference"] < 1e-4


def test_a_card_with_the_old_spelling_of_license_is_read(exported: Path) -> None:
    file = card_path(exported / GRAPH_FILE)
    text, card = file.read_text(), load_encoder(f"onnx:{exported}").card
    assert '"license": "none"' in text
    file.write_text(text.replace('"license"', '"licence"'))
    assert load_encoder(f"onnx:{exported}").card == card
    file.write_text(text.replace('"license"', '"licence": "MIT", "license"'))
    with pytest.raises(EncoderError, match="licence"):
        load_encoder(f"onnx:{exported}")


def test_an_onnx_file_is_not_exported_again(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="an ONNX file already"):
        export_encoder(f"onnx:{exported}", tmp_path / "again")


def test_exporting_without_weights_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match="hf download MahmoodLab/UNI "):
        export_encoder("uni_v1", tmp_path / "out")
    assert not (tmp_path / "out").exists()
