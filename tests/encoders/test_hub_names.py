"""Files that transformers writes load into timm's networks, which then give the same features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sacmil.encoders._base import EncoderRequest
from sacmil.encoders._hub_names import rename_dinov2, rename_vit
from sacmil.encoders.foundation import PRESETS, FoundationPreset, _build_network, _make_source
from sacmil.encoders.timm_model import import_timm
from sacmil.errors import EncoderError

WIDTH = 96
SMALL = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}


def make_small(name: str) -> FoundationPreset:
    """The preset, two narrow blocks deep."""
    preset = next(preset for preset in PRESETS if preset.name == name)
    options = {"depth": 2, "embed_dim": WIDTH, "num_heads": 4}
    architecture = preset.architecture
    options = {**architecture.options, **options}
    return preset._replace(architecture=architecture._replace(options=options))


def make_original(name: str, image_size: int = 224) -> Any:
    """The model of transformers, with random weights that matter in every layer."""
    import_timm()  # declares operators of torchvision, which transformers imports
    from transformers import Dinov2Config, Dinov2Model, ViTConfig, ViTModel

    torch.manual_seed(0)
    if name == "phikon":
        model = ViTModel(ViTConfig(**SMALL, intermediate_size=4 * WIDTH))
    else:
        patch, gated = (14, True) if name == "midnight" else (16, False)
        config = Dinov2Config(
            **SMALL, patch_size=patch, use_swiglu_ffn=gated, image_size=image_size
        )
        model = Dinov2Model(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "image_size"),
    [("phikon", 224), ("phikon_v2", 224), ("midnight", 224), ("midnight", 518)],
)
def test_features_are_those_of_transformers(
    name: str, image_size: int, tmp_path: Path, make_tiles: Any, difference: Any
) -> None:
    model = make_original(name, image_size)
    model.save_pretrained(tmp_path)
    preset = make_small(name)
    source = _make_source(preset)
    encoder = source.load(EncoderRequest(weights=tmp_path))
    tiles = make_tiles(2)
    mean, std = np.float32(source.card.mean), np.float32(source.card.std)
    images = torch.from_numpy(((tiles / np.float32(255) - mean) / std).transpose(0, 3, 1, 2))
    with torch.inference_mode():
        tokens = model(images).last_hidden_state
    wanted = tokens[:, 0]
    if name == "midnight":
        wanted = torch.cat([wanted, tokens[:, 1:].mean(1)], dim=1)
    assert difference(encoder.encode(tiles), wanted.numpy()) < 1e-4


@pytest.mark.parametrize("rename", [rename_vit, rename_dinov2])
def test_names_that_are_timms_already_stay(rename: Any) -> None:
    state = _build_network(make_small("phikon_v2")).state_dict()
    assert set(rename(dict(state))) == set(state)


def test_a_file_that_lacks_a_part_of_the_attention_is_an_error(tmp_path: Path) -> None:
    state = make_original("phikon_v2").state_dict()
    state.pop(next(name for name in state if "k_proj" in name or "key" in name))
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(EncoderError, match="not the weights of phikon_v2"):
        _make_source(make_small("phikon_v2")).load(EncoderRequest(weights=tmp_path / "w.pth"))


def test_the_class_and_mean_of_midnight_have_the_published_width() -> None:
    card = _make_source(next(preset for preset in PRESETS if preset.name == "midnight")).card
    assert (card.width, card.license, card.gated) == (3072, "MIT", False)
