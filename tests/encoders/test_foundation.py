"""The foundation models: official names and shapes, the right tokens, files that load back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exhaustive import EXHAUSTIVE
from safetensors.torch import save_file

from sacmil.encoders import Encoder, describe_encoder, list_encoders, load_encoder
from sacmil.encoders._base import EncoderRequest
from sacmil.encoders._network import NetworkSource
from sacmil.encoders.foundation import PRESETS, FoundationPreset, _build_network, _make_source
from sacmil.encoders.timm_model import import_timm

WIDTH = 96
# As their authors publish them, or the architecture they name: millions of parameters, and shapes.
PUBLISHED = {
    "uni_v1": (303, {"pos_embed": (1, 197, 1024), "blocks.23.ls2.gamma": (1024,)}),
    "uni_v2": (681, {"pos_embed": (1, 256, 1536), "reg_token": (1, 8, 1536)}),
    "virchow": (631, {"pos_embed": (1, 257, 1280), "blocks.31.mlp.fc1.weight": (6832, 1280)}),
    "virchow2": (631, {"pos_embed": (1, 261, 1280), "reg_token": (1, 4, 1280)}),
    "gigapath": (1135, {"pos_embed": (1, 197, 1536), "blocks.39.mlp.fc2.weight": (1536, 4096)}),
    "hoptimus0": (1135, {"pos_embed": (1, 256, 1536), "reg_token": (1, 4, 1536)}),
    "hoptimus1": (1135, {"pos_embed": (1, 256, 1536), "reg_token": (1, 4, 1536)}),
    "h0_mini": (86, {"reg_token": (1, 4, 768), "blocks.0.mlp.fc1.weight": (4096, 768)}),
    "midnight": (1135, {"pos_embed": (1, 257, 1536), "blocks.39.mlp.fc1.weight": (8192, 1536)}),
    "gpfm": (303, {"pos_embed": (1, 257, 1024), "blocks.23.ls2.gamma": (1024,)}),
    "phikon": (86, {"pos_embed": (1, 197, 768)}),
    "phikon_v2": (303, {"pos_embed": (1, 197, 1024), "blocks.23.ls2.gamma": (1024,)}),
    "kaiko_vits8": (22, {"pos_embed": (1, 785, 384)}),
    "kaiko_vits16": (22, {"pos_embed": (1, 197, 384)}),
    "kaiko_vitb8": (86, {"pos_embed": (1, 785, 768)}),
    "kaiko_vitb16": (86, {"pos_embed": (1, 197, 768)}),
    "kaiko_vitl14": (304, {"pos_embed": (1, 1369, 1024), "reg_token": (1, 4, 1024)}),
    "lunit_vits8": (22, {"pos_embed": (1, 785, 384)}),
    "lunit_vits16": (22, {"pos_embed": (1, 197, 384)}),
    "mstar": (303, {"pos_embed": (1, 197, 1024), "blocks.23.ls2.gamma": (1024,)}),
    "pathorchestra": (303, {"pos_embed": (1, 197, 1024), "blocks.23.ls2.gamma": (1024,)}),
}


def make_shallow(preset: FoundationPreset) -> FoundationPreset:
    """The same model, one narrow block deep."""
    small = {"depth": 1, "embed_dim": WIDTH, "num_heads": 4}
    architecture = preset.architecture
    options = {**architecture.options, **small}
    return preset._replace(architecture=architecture._replace(options=options))


def test_every_preset_is_listed_and_has_published_sizes() -> None:
    assert {preset.name for preset in PRESETS} == set(PUBLISHED) <= set(list_encoders())


def test_the_two_h_optimus_have_one_architecture() -> None:
    older, newer = (preset for preset in PRESETS if preset.name.startswith("hoptimus"))
    assert (older.architecture, older.width) == (newer.architecture, newer.width)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_it_has_the_published_parameters_and_the_width_of_its_card(
    preset: FoundationPreset, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_timm()
    # Tensors without values need no first values, which take most of the time even so.
    monkeypatch.setattr("timm.layers.weight_init._trunc_normal_", lambda tensor, *_: tensor)
    with torch.device("meta"):
        network: Any = _build_network(preset).eval()
    millions, shapes = PUBLISHED[preset.name]
    assert round(sum(p.numel() for p in network.parameters()) / 1e6) == millions
    state = network.state_dict()
    assert {name: tuple(state[name].shape) for name in shapes} == shapes
    network.blocks = network.blocks[:1]  # each has the same width
    features = network(torch.empty(1, 3, 224, 224, device="meta"))
    assert tuple(features.shape) == (1, describe_encoder(preset.name).width)


@pytest.mark.parametrize("name", ["virchow", "virchow2"])
def test_virchow_gives_the_class_token_then_the_mean_of_patches_without_registers(
    name: str,
) -> None:
    preset = make_shallow(next(preset for preset in PRESETS if preset.name == name))
    network = _build_network(preset).eval()
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        features = network(images)[0]
        tokens = network.forward_features(images)[0]
    assert len(tokens) == 1 + preset.architecture.options.get("reg_tokens", 0) + 16 * 16
    torch.testing.assert_close(features[:WIDTH], tokens[0])
    torch.testing.assert_close(features[WIDTH:], tokens[-256:].mean(dim=0))


@pytest.mark.parametrize(
    "name",
    ["uni_v1", "uni_v2", "virchow2", "gigapath", "hoptimus0", "h0_mini", "gpfm", "kaiko_vitl14"],
)
def test_its_own_state_dict_loads_back_from_a_file(
    name: str, tmp_path: Path, difference: Callable, make_tiles: Callable
) -> None:
    preset = make_shallow(next(preset for preset in PRESETS if preset.name == name))
    source = _make_source(preset)
    network = _build_network(preset).eval()
    for gamma in (p for n, p in network.named_parameters() if n.endswith(".gamma")):
        torch.nn.init.normal_(gamma)
    file = tmp_path / ("w.safetensors" if name != "gigapath" else "w.bin")
    if file.suffix == ".bin":
        torch.save(network.state_dict(), file)
    else:
        save_file(network.state_dict(), file)
    encoder = load(source, file)
    tiles = make_tiles(1)
    mean, std = np.float32(source.card.mean), np.float32(source.card.std)
    images = torch.from_numpy(((tiles / np.float32(255) - mean) / std).transpose(0, 3, 1, 2))
    with torch.inference_mode():
        assert difference(encoder.encode(tiles), network(images).numpy()) < 1e-4


def load(source: NetworkSource, file: Path) -> Encoder:
    return source.load(EncoderRequest(weights=file))


@pytest.mark.slow
def test_uni_v1_runs_in_full_and_distinguishes_tiles(tiles: np.ndarray) -> None:
    encoder = load_encoder("uni_v1", random_weights=True)
    features = encoder.encode(tiles[:2])
    assert features.shape == (2, 1024)
    assert np.isfinite(features).all()
    assert np.corrcoef(features)[0, 1] < 0.999


@pytest.mark.skipif(not EXHAUSTIVE, reason="drawing the graph takes two minutes")
@pytest.mark.slow
def test_uni_v1_is_the_same_in_both_engines(
    kept_cache: Path, difference: Callable, tiles: np.ndarray
) -> None:
    by_torch, by_onnx = (
        load_encoder("uni_v1", random_weights=True, engine=engine)
        for engine in ("torch", "onnxruntime")
    )
    assert difference(by_onnx.encode(tiles[:1]), by_torch.encode(tiles[:1])) < 1e-4
