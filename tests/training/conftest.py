"""What the tests of training share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_cohort import Material, write_material


@pytest.fixture(scope="session")
def written_once(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return write_material(tmp_path_factory.mktemp("cohort") / "bags", patients=8)


@pytest.fixture
def dataset(written_once: Material, tmp_path: Path) -> Material:
    """A copy of its own: a test may damage bags."""
    source = next(iter(written_once.bags.values())).parent
    shutil.copytree(source, tmp_path / "bags")
    bags = {name: tmp_path / "bags" / path.name for name, path in written_once.bags.items()}
    return written_once._replace(bags=bags)
