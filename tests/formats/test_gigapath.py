"""GigaPath's layout: pixels of the tile, and never mistaken for CLAM's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sacmil import Bag, read_bag
from sacmil.errors import FormatError


@pytest.fixture
def wide(bag: Bag) -> Bag:
    features = np.random.default_rng(0).random((len(bag), 1536), np.float32)
    return Bag(bag.slide_id, features, bag.coords, 512, mpp=0.25)


@pytest.fixture
def path(tmp_path: Path, wide: Bag, write_h5: Callable) -> Path:
    arrays = {"features": wide.features, "coords": wide.coords // 2}
    return write_h5(tmp_path / "bags" / f"{wide.slide_id}.h5", arrays)


@pytest.mark.parametrize("hints", [{}, {"mpp": 0.25}, {"patch_size": 512}])
def test_a_file_is_the_bag(path: Path, wide: Bag, same_bag: Callable, hints: Any) -> None:
    found = read_bag(path, layout="gigapath", **hints)
    same_bag(found, wide)
    assert found.tile_px == 256
    if hints:
        assert (found.patch_size, found.mpp) == (512, 0.25)
        np.testing.assert_array_equal(found.coords, wide.coords)
    else:
        assert (found.patch_size, found.mpp) == (256, 0.5)
        np.testing.assert_array_equal(found.coords, wide.coords // 2)


def test_a_file_that_may_be_clams_has_to_be_named(path: Path) -> None:
    with pytest.raises(FormatError, match=r"may be clam or gigapath.*`layout='clam'`") as raised:
        read_bag(path, patch_size=256)
    assert "'gigapath'" in str(raised.value)
    assert read_bag(path, layout="clam", patch_size=256).patch_size == 256


@pytest.mark.parametrize("change", ["width", "folder", "patches"])
def test_what_only_clam_writes_needs_no_name(
    tmp_path: Path, wide: Bag, write_h5: Callable, change: str
) -> None:
    folder = tmp_path / "FEATS" / ("h5_files" if change == "folder" else "bags")
    features = wide.features[:, :1024] if change == "width" else wide.features
    arrays = {"features": features, "coords": wide.coords}
    path = write_h5(folder / "a.h5", arrays)
    if change == "patches":
        attributes = {"patch_size": 512, "patch_level": 0, "downsample": [1.0, 1.0]}
        write_h5(tmp_path / "FEATS/patches/a.h5", {"coords": wide.coords}, {"coords": attributes})
    assert read_bag(path, patch_size=512).patch_size == 512


def test_resolution_and_patch_size_have_to_agree(path: Path) -> None:
    with pytest.raises(FormatError, match="was given"):
        read_bag(path, layout="gigapath", mpp=0.25, patch_size=300)


def test_level_0_pixels_are_not_taken_for_the_tiles(
    tmp_path: Path, wide: Bag, write_h5: Callable
) -> None:
    path = write_h5(tmp_path / "a.h5", {"features": wide.features, "coords": wide.coords})
    with pytest.raises(FormatError, match="512 apart, 2 times"):
        read_bag(path, layout="gigapath")


def test_coordinates_that_are_no_numbers_are_reported(tmp_path: Path, write_h5: Callable) -> None:
    arrays = {"features": np.ones((2, 4)), "coords": np.array([b"a", b"b"])}
    with pytest.raises(FormatError, match="expected numbers"):
        read_bag(write_h5(tmp_path / "a.h5", arrays), layout="gigapath")
