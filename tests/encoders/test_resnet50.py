"""resnet50: torchvision's own network, cut after its third stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sacmil.encoders import load_encoder
from sacmil.encoders._timm import import_timm
from sacmil.errors import EncoderError


@pytest.fixture
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


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_torchvisions_state_dict_gives_the_third_stage_of_torchvisions_network(
    official: torch.nn.Module, tmp_path: Path, tiles: np.ndarray, suffix: str, difference: Callable
) -> None:
    file = tmp_path / f"weights{suffix}"
    state = official.state_dict()
    assert "fc.weight" in state
    if suffix == ".safetensors":
        save_file(state, file)
    else:
        torch.save(state, file)
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
    one, other = (load_encoder("resnet50", random_weights=True, engine="torch") for _ in "ab")
    assert torch.rand(1) == expected
    tile = np.full((1, 224, 224, 3), 90, np.uint8)
    assert np.array_equal(one.encode(tile), other.encode(tile))


def test_weights_of_another_network_are_rejected_by_name_and_by_shape(
    official: torch.nn.Module, tmp_path: Path
) -> None:
    state = official.state_dict()
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
