"""timm:NAME: the card comes from timm, weights come from a file, and errors are clear."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sacmil.encoders import describe_encoder, find_encoder_weights, load_encoder, timm_model
from sacmil.encoders.timm_model import import_timm
from sacmil.errors import EncoderError, MissingExtraError

NAME = "timm:test_vit.r160_in1k"


def test_the_card_holds_what_timm_states() -> None:
    card = describe_encoder(NAME)
    config = import_timm().get_pretrained_cfg("test_vit.r160_in1k")
    assert (card.input_px, card.mean, card.std) == (160, tuple(config.mean), tuple(config.std))
    assert card.resample == config.interpolation
    assert (card.license, card.weights) == (config.license, "hub timm/test_vit.r160_in1k")


@pytest.mark.parametrize("name", ["test_vit", "mobilenetv3_small_050"])
def test_the_width_is_that_of_the_features(name: str) -> None:
    card = describe_encoder(f"timm:{name}")
    encoder = load_encoder(f"timm:{name}", random_weights=True)
    tile = np.full((1, card.input_px, card.input_px, 3), 200, np.uint8)
    assert encoder.encode(tile).shape == (1, card.width)


def test_weights_with_a_classifier_load_and_give_the_features_before_it(tmp_path: Path) -> None:
    network = import_timm().create_model("test_vit", pretrained=False).eval()
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    encoder = load_encoder(NAME, weights=tmp_path / "w.safetensors")
    tile = np.random.default_rng(0).integers(0, 256, (1, 160, 160, 3), np.uint8)
    mean, std = np.float32(encoder.card.mean), np.float32(encoder.card.std)
    images = torch.from_numpy(((tile / np.float32(255) - mean) / std).transpose(0, 3, 1, 2))
    with torch.inference_mode():
        expected = network.forward_head(network.forward_features(images), pre_logits=True).numpy()
    np.testing.assert_allclose(encoder.encode(tile), expected, atol=1e-5)


def test_the_error_for_a_misspelt_name_or_tag_suggests_others() -> None:
    with pytest.raises(EncoderError, match=r"did you mean .*resnet50"):
        describe_encoder("timm:resnet_50")
    with pytest.raises(EncoderError, match=r"no weights called .*resnet50\.tv_in1k"):
        describe_encoder("timm:resnet50.nowhere")


def test_missing_weights_name_the_hub_and_a_file_without_a_colon() -> None:
    with pytest.raises(EncoderError) as error:
        find_encoder_weights(NAME)
    assert "hf download timm/test_vit.r160_in1k" in str(error.value)
    assert "timm_test_vit.r160_in1k.safetensors" in str(error.value)


def test_timm_builds_and_runs_a_model() -> None:
    network = import_timm().create_model("test_vit", pretrained=False, num_classes=0).eval()
    with torch.inference_mode():
        assert network(torch.zeros(1, 3, 160, 160)).isfinite().all()


def test_timms_transforms_are_usable() -> None:
    import_timm()
    from timm.data import create_transform

    assert "Normalize" in str(create_transform(224))


def test_it_imports_again_in_the_same_process() -> None:
    assert import_timm() is import_timm()


@pytest.mark.slow
def test_a_fresh_process_with_warnings_as_errors_imports_it_from_several_threads() -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
from sacmil.encoders.timm_model import import_timm
with ThreadPoolExecutor(4) as pool:
    assert len({id(module) for module in pool.map(lambda _: import_timm(), range(4))}) == 1
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_another_fault_of_torchvision_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("something else is wrong")

    monkeypatch.setattr(timm_model.importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        import_timm()


def test_without_timm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sacmil\[encoders\]'"):
        import_timm()
