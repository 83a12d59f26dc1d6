"""A small slide with scored tiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from slide_maker import tissue_pixels, write_slide

from sacmil.results import InstanceScores


@pytest.fixture(scope="session")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slides")
    return write_slide(folder / "a.tif", tissue_pixels(900, 700, 0))


@pytest.fixture
def scores() -> InstanceScores:
    """Tiles of 100 pixels everywhere; the score grows to the right."""
    coords = np.array([(x, y) for y in range(0, 700, 100) for x in range(0, 900, 100)])
    by_class = np.stack([coords[:, 0], -coords[:, 0]], axis=1).astype(np.float32)
    return InstanceScores(coords, 100, coords[:, 0].astype(np.float32), by_class)
