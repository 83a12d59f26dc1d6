"""Tiles on disk survive a round trip, TRIDENT finds its names, damaged files are rejected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from sacmil.errors import FormatError
from sacmil.slides.tile_file import SlideTiles, read_tiles, write_tiles
from sacmil.slides.tiling import TileSpec, lay_tiles
from sacmil.slides.tissue import Tissue
from sacmil.units import MicronsPerPixel


def make_slide_tiles(mpp: float = 0.2527, **changes: Any) -> SlideTiles:
    tissue = Tissue(np.random.default_rng(0).random((60, 80)) > 0.5, 64.0, (5120, 3840))
    spec, slide_mpp = TileSpec(overlap=32), MicronsPerPixel(mpp)
    tiles = lay_tiles(tissue, slide_mpp, spec)
    return SlideTiles("TCGA-é-1", tiles, spec, slide_mpp, (5120, 3840), "ab12", **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "slide.h5"


@pytest.mark.parametrize("mpp", [0.2527, 0.25, 4.0 / 9])
def test_tiles_survive_a_round_trip(path: Path, mpp: float) -> None:
    slide_tiles = make_slide_tiles(mpp)
    write_tiles(path, slide_tiles)
    again = read_tiles(path)
    np.testing.assert_array_equal(again.tiles.coords, slide_tiles.tiles.coords)
    assert again.tiles.coords.dtype == np.int64
    for name in ("side", "stride", "tile_px"):
        assert getattr(again.tiles, name) == getattr(slide_tiles.tiles, name)
    for name in ("slide_id", "spec", "slide_mpp", "slide_size", "mask_hash"):
        assert getattr(again, name) == getattr(slide_tiles, name)


def test_equal_tiles_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_tiles(tmp_path / name, make_slide_tiles())
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_trident_finds_its_names_and_types(path: Path) -> None:
    write_tiles(path, make_slide_tiles(0.25))
    with h5py.File(path) as file:
        coords = file["coords"]
        assert coords.dtype == np.int64
        attributes = dict(coords.attrs)
    expected = {
        "patch_size": 256,
        "patch_size_level0": 512,
        "level0_magnification": 40,
        "target_magnification": 20,
        "overlap": 32,
        "name": "TCGA-é-1",
        "savetodir": "None",
        "level0_width": 5120,
        "level0_height": 3840,
    }
    assert {name: attributes[name] for name in expected} == expected
    for name in ("patch_size", "patch_size_level0", "overlap", "level0_width"):
        assert np.issubdtype(attributes[name].dtype, np.integer)


def test_a_failed_write_leaves_the_old_file(path: Path) -> None:
    write_tiles(path, make_slide_tiles())
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_tiles(path, replace(make_slide_tiles(), mask_hash=object()))  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("length", [0, 1, 100, 500, 0.3, 0.6, 0.95])
def test_a_truncated_file_is_rejected(path: Path, length: float) -> None:
    write_tiles(path, make_slide_tiles())
    content = path.read_bytes()
    path.write_bytes(content[: int(length if length >= 1 else length * len(content))])
    with pytest.raises(FormatError, match=r"slide\.h5: .*delete the file and run sacmil extract"):
        read_tiles(path)


def test_flipped_bits_are_rejected_or_leave_consistent_tiles(path: Path) -> None:
    write_tiles(path, make_slide_tiles())
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for position in rng.integers(0, len(content), 150):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            slide_tiles = read_tiles(path)
        except FormatError:
            continue
        assert (slide_tiles.tiles.coords >= 0).all()
        assert slide_tiles.tiles.side == slide_tiles.spec.side(slide_tiles.slide_mpp)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.attrs.__delitem__("layout"), "layout None"),
        (lambda f: f.attrs.__setitem__("layout", "sacmil bag"), "'sacmil bag'"),
        (lambda f: f.attrs.__setitem__("schema_version", 9), "version 9.*pip install"),
        (lambda f: f.__delitem__("coords"), "coords"),
        (lambda f: f["coords"].attrs.__delitem__("mpp"), "mpp"),
        (lambda f: f["coords"].attrs.__setitem__("mpp", -1.0), "mpp is -1"),
        (lambda f: f["coords"].attrs.__setitem__("mpp", "half"), "half"),
        (lambda f: f["coords"].attrs.__setitem__("side_level0", 100.0), "do not follow"),
        (lambda f: f["coords"].attrs.__setitem__("mpp_level0", np.nan), "do not follow"),
        (lambda f: f["coords"].attrs.__setitem__("level0_width", 2000), "beyond the slide"),
        (lambda f: f["coords"].__setitem__((0, 0), -5), "beyond the slide"),
    ],
)
def test_contradictory_values_are_rejected(path: Path, change: Any, message: str) -> None:
    write_tiles(path, make_slide_tiles())
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(FormatError, match=message):
        read_tiles(path)


def test_a_missing_file_and_a_foreign_one_are_rejected(path: Path) -> None:
    with pytest.raises(FormatError, match=r"slide\.h5"):
        read_tiles(path)
    path.parent.mkdir()
    path.write_text("x,y\n1,2\n")
    with pytest.raises(FormatError, match=r"slide\.h5"):
        read_tiles(path)


def test_tiles_counted_in_pixels_are_read_as_they_were_written(path: Path) -> None:
    tissue = Tissue(np.ones((46, 70), bool), 10.0, (700, 460))
    spec = TileSpec(mpp=None, patch_size=115)
    slide_tiles = SlideTiles("field", lay_tiles(tissue, None, spec), spec, None, (700, 460), "ab12")
    write_tiles(path, slide_tiles)
    again = read_tiles(path)
    assert (again.spec, again.slide_mpp, again.tiles.side) == (spec, None, 115)
