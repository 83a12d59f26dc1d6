"""Fixtures that write small slides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slide_maker import tissue_pixels, write_slide


@pytest.fixture
def make_pixels() -> Callable[..., np.ndarray]:
    """Pixels by width, height and seed."""
    return tissue_pixels


@pytest.fixture
def make_slide(tmp_path: Path) -> Callable[..., Path]:
    """Write a pyramid by name, size and the options of write_slide."""

    def make(
        name: str = "slide.tif", width: int = 900, height: int = 700, seed: int = 0, **options: Any
    ) -> Path:
        return write_slide(tmp_path / name, tissue_pixels(width, height, seed), **options)

    return make
