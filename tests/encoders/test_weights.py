"""Weights are found in the documented folders, never downloaded by themselves, never executed."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from sacmil.encoders import find_encoder_weights, load_encoder
from sacmil.encoders._base import EncoderRequest
from sacmil.encoders._network import (
    NetworkSource,
    WeightsOrigin,
    get_weights,
    hash_weights,
    read_state,
    weights_folder,
)
from sacmil.errors import EncoderError

UNI = WeightsOrigin(hub=("MahmoodLab/UNI",), gated=True)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("something tried to reach the network")

    monkeypatch.setattr(socket.socket, "connect", fail)
    monkeypatch.setattr(socket, "getaddrinfo", fail)


def put(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(file.name.encode())
    return file


@pytest.mark.usefixtures("no_network")
def test_missing_weights_are_not_downloaded_and_the_error_gives_path_and_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(EncoderError) as error:
        load_encoder("uni_v1")
    message = str(error.value)
    assert f"{weights_folder() / 'uni_v1'}.safetensors" in message
    assert "as `weights`" in message
    assert "hf download MahmoodLab/UNI (request access" in message
    assert "`download=True`" in message


@pytest.mark.usefixtures("no_network")
def test_a_download_that_fails_offline_gives_the_same_error() -> None:
    with pytest.raises(EncoderError, match=r"cannot be reached.*put the file at"):
        load_encoder("resnet50", download=True)


def test_a_download_takes_the_first_file_the_hub_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    file = put(tmp_path / "pytorch_model.bin")

    def download(repository: str, name: str) -> str:
        assert repository == "MahmoodLab/UNI"
        if name == "model.safetensors":
            raise EntryNotFoundError("not here")
        return str(file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert get_weights("uni_v1", UNI, user_path=None, download=True) == file


def test_the_error_for_a_denied_download_says_how_to_get_access(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub

    def deny(*_: object) -> str:
        raise OSError("401: access to this model is restricted\nlong text")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", deny)
    with pytest.raises(EncoderError, match=r"\(401: access to .* restricted\).*request access"):
        get_weights("uni_v1", UNI, user_path=None, download=True)


@pytest.mark.parametrize("name", ["uni_v1.safetensors", "uni_v1.bin", "uni_v1.pth"])
def test_a_file_in_the_folder_of_weights_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("SACMIL_WEIGHTS", str(tmp_path / "w"))
    file = put(tmp_path / "w" / name)
    assert find_encoder_weights("uni_v1") == file


def test_a_downloaded_folder_is_found_and_may_be_named(tmp_path: Path, own_folders: Path) -> None:
    file = put(own_folders / "weights" / "uni_v1" / "pytorch_model.bin")
    assert find_encoder_weights("uni_v1") == file
    assert get_weights("uni_v1", UNI, user_path=file.parent, download=False) == file


def test_weights_in_the_hubs_cache_are_found(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--MahmoodLab--uni"
    put(repository / "refs" / "main").write_text("abc")
    file = put(repository / "snapshots" / "abc" / "pytorch_model.bin")
    assert find_encoder_weights("uni_v1") == file


def test_a_named_file_wins_over_what_is_found(tmp_path: Path, own_folders: Path) -> None:
    put(own_folders / "weights" / "uni_v1.bin")
    file = put(tmp_path / "mine.pth")
    assert get_weights("uni_v1", UNI, user_path=file, download=False) == file


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_a_named_path_without_weights_is_rejected(tmp_path: Path, make: Callable) -> None:
    make(tmp_path / "w")
    with pytest.raises(EncoderError, match=r"expected the weights of uni_v1, a \.safetensors"):
        get_weights("uni_v1", UNI, user_path=tmp_path / "w", download=False)


class Evil:
    """Unpickling it would leave a trace."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("/tmp/sacmil-was-executed"),)


@pytest.mark.parametrize("suffix", [".bin", ".pth", ".safetensors"])
def test_a_pickle_is_not_executed(tmp_path: Path, suffix: str) -> None:
    trace = Path("/tmp/sacmil-was-executed")
    trace.unlink(missing_ok=True)
    file = tmp_path / f"w{suffix}"
    file.write_bytes(pickle.dumps({"conv1.weight": Evil()}))
    with pytest.raises(EncoderError, match="cannot be read as weights"):
        read_state(file)
    assert not trace.exists()


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"PK\3\4" + b"x" * 50, b"{}"])
@pytest.mark.parametrize("suffix", [".bin", ".safetensors"])
def test_a_damaged_file_is_an_error_that_names_it(
    tmp_path: Path, content: bytes, suffix: str
) -> None:
    (tmp_path / f"w{suffix}").write_bytes(content)
    with pytest.raises(EncoderError, match=f"w{suffix}"):
        load_encoder("resnet50", weights=tmp_path / f"w{suffix}", engine="torch")


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {"state_dict": {"a": "b"}}, torch.zeros(2)])
def test_a_file_of_something_else_is_an_error(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(EncoderError, match="holds no state dict"):
        read_state(tmp_path / "w.pth")


@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
def test_a_checkpoint_of_a_training_script_is_unwrapped(tmp_path: Path, wrapper: str) -> None:
    torch.save({wrapper: {"a": torch.ones(2)}}, tmp_path / "w.pth")
    assert list(read_state(tmp_path / "w.pth")) == ["a"]


def test_half_precision_files_are_computed_in_single_precision(
    tiny: NetworkSource, tmp_path: Path, make_tiles: Callable, difference: Callable
) -> None:
    network = tiny.build()
    save_file({k: v.half() for k, v in network.state_dict().items()}, tmp_path / "w.safetensors")
    encoder = tiny.load(EncoderRequest(weights=tmp_path / "w.safetensors"))
    again = tiny.load(EncoderRequest(weights=tmp_path / "w.safetensors"))
    tiles = make_tiles(2, 32)
    assert encoder.hash == again.hash == hash_weights(tmp_path / "w.safetensors")
    assert np.array_equal(encoder.encode(tiles), again.encode(tiles))
    save_file(network.state_dict(), tmp_path / "whole.safetensors")
    single = tiny.load(EncoderRequest(weights=tmp_path / "whole.safetensors"))
    assert single.hash != encoder.hash
    assert difference(encoder.encode(tiles), single.encode(tiles)) < 1e-2
