"""Fixtures for encoders: tiles, a separate cache folder, no hub."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sacmil.encoders import EncoderCard
from sacmil.encoders._base import EncoderRequest
from sacmil.encoders._network import NetworkSource, WeightsOrigin


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a separate cache, so that the user's cache and weights are neither read nor written."""
    monkeypatch.setenv("SACMIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SACMIL_WEIGHTS", raising=False)
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that several tests may use, since exporting takes seconds."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def kept_cache(shared_cache: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SACMIL_CACHE", str(shared_cache))
    return shared_cache


def _make_tiles(count: int, side: int = 224, seed: int = 0) -> np.ndarray:
    """Return tiles with structure at several sizes, pink like stained tissue."""
    rng = np.random.default_rng(seed)
    tiles = np.zeros((count, side, side, 3), np.float32)
    for cell in (4, 16, 56):
        noise = rng.uniform(-30, 30, (count, side // cell + 1, side // cell + 1, 3))
        enlarged = noise.repeat(cell, axis=1).repeat(cell, axis=2)
        tiles += enlarged[:, :side, :side]
    return np.clip(tiles + [190, 130, 180], 0, 255).astype(np.uint8)


@pytest.fixture
def make_tiles() -> Callable[..., np.ndarray]:
    return _make_tiles


@pytest.fixture
def tiles() -> np.ndarray:
    return _make_tiles(3)


@pytest.fixture
def difference() -> Callable[[np.ndarray, np.ndarray], float]:
    """Return a function: the largest difference of two arrays as a share of the largest value."""
    return lambda found, expected: float(np.abs(found - expected).max() / np.abs(expected).max())


def _build_tiny() -> torch.nn.Module:
    layers = torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)
    return torch.nn.Sequential(*layers, torch.nn.Flatten())


def _tiny() -> NetworkSource:
    card = EncoderCard(
        name="tiny",
        width=8,
        input_px=32,
        resample="bilinear",
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.3, 0.4),
        pooling="mean",
        mpp=0.5,
        license="none",
        weights="nowhere",
    )
    return NetworkSource(
        card=card, origin=WeightsOrigin(), build=_build_tiny, unused_prefixes=("head.",)
    )


@pytest.fixture
def tiny() -> NetworkSource:
    """An encoder as a plugin would define it, small enough to export quickly."""
    return _tiny()


@pytest.fixture(scope="session")
def _exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "tiny"
    return _tiny().export(EncoderRequest(random_weights=True), folder)


@pytest.fixture
def exported(_exported: Path, tmp_path: Path) -> Path:
    """The folder of the exported tiny encoder; each test may damage its copy."""
    return shutil.copytree(_exported, tmp_path / "exported")
