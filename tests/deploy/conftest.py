"""Models to export, and one that is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_models import WIDTH, make_model

from sacmil import save_model
from sacmil.deploy.export import export_model


@pytest.fixture(scope="session", autouse=True)
def _fast_exports(onnx_registry: None) -> None:
    pass


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a saved model."""

    def save(name: str, **options: Any) -> Path:
        folder = tmp_path_factory.mktemp("model") / name
        bags = {"encoder": "colour", "dim": WIDTH, "patch_um": 128.0, "tile_px": 256}
        model = make_model(name, **options)
        save_model(folder, model, classes=["a", "b", "c"], notes={"bags": bags})
        return folder

    return save


@pytest.fixture(scope="session")
def exported(models: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported abmil; tests that spoil it take a copy."""
    return export_model(models("abmil"), tmp_path_factory.mktemp("out") / "abmil", sizes=[2, 70])


@pytest.fixture(scope="session")
def exported_sac_mil(models: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported sac_mil, compared on a few bags only."""
    out = tmp_path_factory.mktemp("out") / "sac_mil"
    return export_model(models("sac_mil"), out, sizes=[2, 5])
