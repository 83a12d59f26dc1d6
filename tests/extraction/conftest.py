"""A small synthetic cohort, and an encoder so small that most time goes into reading."""

from __future__ import annotations

from pathlib import Path

import pytest
from slide_maker import tissue_pixels, write_slide
from tiny_encoder import write_encoder


@pytest.fixture
def encoder(tmp_path: Path) -> str:
    return write_encoder(tmp_path / "colour.onnx")


@pytest.fixture(scope="session")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three slides of 0.5 µm per pixel."""
    folder = tmp_path_factory.mktemp("cohort")
    for seed, (width, height) in enumerate([(1024, 768), (768, 768), (512, 1024)]):
        write_slide(folder / f"slide-{seed}.tif", tissue_pixels(width, height, seed), mpp=0.5)
    return folder


@pytest.fixture
def make_encoder(tmp_path: Path):
    return lambda name, **options: write_encoder(tmp_path / name, **options)
