"""What the tests of training share."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_cohort import Material, write_material


@pytest.fixture
def dataset(tmp_path: Path) -> Material:
    return write_material(tmp_path / "bags")
