"""Tiles on disk: what is written is read, TRIDENT finds its names, damage is told."""

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


def make_sheet(mpp: float = 0.2527, **changes: Any) -> SlideTiles:
    tissue = Tissue(np.random.default_rng(0).random((60, 80)) > 0.5, 64.0, (5120, 3840))
    spec, slide_mpp = TileSpec(overlap=32), MicronsPerPixel(mpp)
    tiles = lay_tiles(tissue, slide_mpp, spec)
    return SlideTiles("TCGA-é-1", tiles, spec, slide_mpp, (5120, 3840), "ab12", **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "slide.h5"


@pytest.mark.parametrize("mpp", [0.2527, 0.25, 4.0 / 9])
def test_what_is_written_is_read(path: Path, mpp: float) -> None:
    sheet = make_sheet(mpp)
    write_tiles(path, sheet)
    again = read_tiles(path)
    np.testing.assert_array_equal(again.tiles.coords, sheet.tiles.coords)
    assert again.tiles.coords.dtype == np.int64
    for name in ("side", "stride", "tile_px"):
        assert getattr(again.tiles, name) == getattr(sheet.tiles, name)
    for name in ("slide_id", "spec", "slide_mpp", "slide_size", "mask_hash"):
        assert getattr(again, name) == getattr(sheet, name)


def test_equal_tiles_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_tiles(tmp_path / name, make_sheet())
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_trident_finds_its_names_and_kinds(path: Path) -> None:
    write_tiles(path, make_sheet(0.25))
    with h5py.File(path) as file:
        coords = file["coords"]
        assert coords.dtype == np.int64
        facts = dict(coords.attrs)
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
    assert {name: facts[name] for name in expected} == expected
    for name in ("patch_size", "patch_size_level0", "overlap", "level0_width"):
        assert np.issubdtype(facts[name].dtype, np.integer)


def test_a_failed_write_leaves_the_old_file(path: Path) -> None:
    write_tiles(path, make_sheet())
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_tiles(path, replace(make_sheet(), mask_hash=object()))  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("kept", [0, 1, 100, 500, 0.3, 0.6, 0.95])
def test_a_truncated_file_is_told(path: Path, kept: float) -> None:
    write_tiles(path, make_sheet())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept if kept >= 1 else kept * len(whole))])
    with pytest.raises(FormatError, match=r"slide\.h5: .*delete the file and run sacmil extract"):
        read_tiles(path)


def test_flipped_bits_are_told_or_change_nothing_that_would_not_fit(path: Path) -> None:
    write_tiles(path, make_sheet())
    whole, random = path.read_bytes(), np.random.default_rng(0)
    for position in random.integers(0, len(whole), 150):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(random.integers(8))
        path.write_bytes(damaged)
        try:
            sheet = read_tiles(path)
        except FormatError:
            continue
        assert (sheet.tiles.coords >= 0).all()
        assert sheet.tiles.side == sheet.spec.side(sheet.slide_mpp)


@pytest.mark.parametrize(
    ("change", "told"),
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
def test_what_does_not_fit_is_told(path: Path, change: Any, told: str) -> None:
    write_tiles(path, make_sheet())
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(FormatError, match=told):
        read_tiles(path)


def test_a_missing_file_and_a_foreign_one_are_told(path: Path) -> None:
    with pytest.raises(FormatError, match=r"slide\.h5"):
        read_tiles(path)
    path.parent.mkdir()
    path.write_text("x,y\n1,2\n")
    with pytest.raises(FormatError, match=r"slide\.h5"):
        read_tiles(path)


def test_tiles_counted_in_pixels_are_read_as_they_were_written(path: Path) -> None:
    tissue = Tissue(np.ones((46, 70), bool), 10.0, (700, 460))
    spec = TileSpec(mpp=None, patch_size=115)
    sheet = SlideTiles("field", lay_tiles(tissue, None, spec), spec, None, (700, 460), "ab12")
    write_tiles(path, sheet)
    again = read_tiles(path)
    assert (again.spec, again.slide_mpp, again.tiles.side) == (spec, None, 115)
