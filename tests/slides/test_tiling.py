"""The grid never drifts, stays on the slide, and keeps exactly the tiles with enough tissue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacmil.errors import NoTissueError, OptionError, SlideError
from sacmil.slides import tiling
from sacmil.slides.tiling import Tiles, TileSpec, lay_tiles, write_tiles
from sacmil.slides.tissue import Tissue
from sacmil.units import MicronsPerPixel


def make_full_tissue(width: int, height: int, downsample: float = 10.0) -> Tissue:
    shape = int(np.ceil(height / downsample)), int(np.ceil(width / downsample))
    return Tissue(np.ones(shape, bool), downsample, (width, height))


def plain_share(tissue: Tissue, x: float, y: float, side: float) -> float:
    """Return the share of one tile by a sum over the pixels of the mask."""
    step = tissue.downsample
    row, column = np.nonzero(tissue.mask)
    wide = np.minimum(x + side, (column + 1) * step) - np.maximum(x, column * step)
    high = np.minimum(y + side, (row + 1) * step) - np.maximum(y, row * step)
    return float((wide.clip(0) * high.clip(0)).sum() / side**2)


@given(
    mask=st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).random((9, 11))),
    downsample=st.floats(3.0, 12.0),
    patch_size=st.integers(12, 40),
    overlap=st.integers(0, 4),
    min_tissue=st.floats(0.05, 0.95),
)
@settings(max_examples=30, deadline=None)
def test_exactly_the_tiles_with_enough_tissue_are_kept(
    mask: npt.NDArray[np.float64],
    downsample: float,
    patch_size: int,
    overlap: int,
    min_tissue: float,
) -> None:
    size = int(11 * downsample), int(9 * downsample)
    if patch_size > min(size):
        return
    tissue = Tissue(mask > 0.5, downsample, size)
    spec = TileSpec(mpp=1.0, patch_size=patch_size, overlap=overlap, min_tissue=min_tissue)
    try:
        coords = lay_tiles(tissue, MicronsPerPixel(1.0), spec).coords.tolist()
    except NoTissueError:
        coords = []
    stride = patch_size - overlap
    corners = [
        (x, y)
        for y in range(0, size[1] - patch_size + 1, stride)
        for x in range(0, size[0] - patch_size + 1, stride)
    ]
    shares = {corner: plain_share(tissue, *corner, patch_size) for corner in corners}
    assert [list(p) for p, share in shares.items() if share > min_tissue + 1e-6] == [
        corner for corner in coords if shares[tuple(corner)] > min_tissue + 1e-6
    ]
    assert all(shares[tuple(corner)] > min_tissue - 1e-6 for corner in coords)


@given(
    slide_mpp=st.floats(0.1, 1.0),
    mpp=st.floats(0.5, 4.0),
    patch_size=st.integers(16, 512),
    width=st.integers(3000, 60_000),
)
@settings(max_examples=60, deadline=None)
def test_corners_never_drift_and_tiles_never_exceed_the_slide(
    slide_mpp: float, mpp: float, patch_size: int, width: int
) -> None:
    height = 3000
    spec = TileSpec(mpp=mpp, patch_size=patch_size)
    side = patch_size * mpp / slide_mpp
    if side > height:
        return
    tiles = lay_tiles(make_full_tissue(width, height, 50.0), MicronsPerPixel(slide_mpp), spec)
    x = np.unique(tiles.coords[:, 0])
    assert np.abs(x - np.arange(len(x)) * side).max() <= 0.51
    assert (tiles.coords >= 0).all()
    assert (tiles.coords + tiles.side <= (width, height)).all()
    assert width - (x[-1] + side) < side + 1  # no room for another
    order = np.lexsort((tiles.coords[:, 0], tiles.coords[:, 1]))
    np.testing.assert_array_equal(order, np.arange(len(tiles)))


def test_tiles_coincide_with_the_files_own_if_their_side_is_a_multiple() -> None:
    tiles = lay_tiles(make_full_tissue(5000, 5000), MicronsPerPixel(0.25), TileSpec())
    assert (tiles.side, tiles.stride, tiles.tile_px) == (512, 512, 256)
    assert (tiles.coords % 256 == 0).all()
    assert len(tiles) == 81


def test_rounding_errors_do_not_make_a_side_fractional() -> None:
    assert TileSpec(mpp=0.5, patch_size=224).side(MicronsPerPixel(0.1)) == 1120
    assert TileSpec(mpp=0.3, patch_size=256).side(MicronsPerPixel(0.1)) == 768


def test_overlap_is_counted_in_pixels_of_the_tile() -> None:
    spec = TileSpec(patch_size=256, overlap=64)
    tiles = lay_tiles(make_full_tissue(4096, 512), MicronsPerPixel(0.25), spec)
    assert tiles.stride == 384
    assert tiles.coords[:3].tolist() == [[0, 0], [384, 0], [768, 0]]


def test_a_share_of_exactly_the_minimum_is_enough() -> None:
    mask = np.zeros((4, 4), bool)
    mask[0, 0] = True
    tissue = Tissue(mask, 25.0, (100, 100))
    spec = TileSpec(mpp=1.0, patch_size=50, min_tissue=0.25)
    assert lay_tiles(tissue, MicronsPerPixel(1.0), spec).coords.tolist() == [[0, 0]]


def test_at_zero_any_tissue_is_enough_but_some_is_needed() -> None:
    mask = np.zeros((10, 10), bool)
    mask[3, 3] = True
    tissue = Tissue(mask, 10.0, (100, 100))
    tiles = lay_tiles(tissue, MicronsPerPixel(1.0), TileSpec(mpp=1.0, patch_size=20, min_tissue=0))
    assert tiles.coords.tolist() == [[20, 20]]


@given(low=st.floats(0.0, 1.0), high=st.floats(0.0, 1.0))
@settings(max_examples=30, deadline=None)
def test_a_higher_minimum_keeps_a_subset(low: float, high: float) -> None:
    low, high = sorted([low, high])
    tissue = Tissue(np.random.default_rng(0).random((40, 40)) > 0.4, 7.3, (290, 290))

    def lay(share: float) -> set[tuple[int, ...]]:
        try:
            spec = TileSpec(mpp=1.0, patch_size=13, min_tissue=share)
            return set(map(tuple, lay_tiles(tissue, MicronsPerPixel(1.0), spec).coords.tolist()))
        except NoTissueError:
            return set()

    assert lay(high) <= lay(low)


def test_the_error_for_too_little_tissue_states_the_largest_share() -> None:
    mask = np.zeros((10, 10), bool)
    mask[0, 0] = True
    tissue = Tissue(mask, 10.0, (100, 100))
    spec = TileSpec(mpp=1.0, patch_size=50, min_tissue=0.5)
    with pytest.raises(NoTissueError, match=r"none of 4 tiles has 50%.*most is 4%.*`min_tissue`"):
        lay_tiles(tissue, MicronsPerPixel(1.0), spec)


def test_a_tile_larger_than_the_slide_is_an_error() -> None:
    with pytest.raises(SlideError, match=r"512 x 512 .* only 500 x 900; cut smaller tiles"):
        lay_tiles(make_full_tissue(500, 900), MicronsPerPixel(0.25), TileSpec())


def test_an_overlap_that_makes_millions_of_tiles_is_rejected() -> None:
    spec = TileSpec(patch_size=256, overlap=255)
    with pytest.raises(OptionError, match="`overlap`"):
        lay_tiles(make_full_tissue(50_000, 50_000, 100), MicronsPerPixel(0.5), spec)
    with pytest.raises(OptionError, match="`overlap`"):
        lay_tiles(make_full_tissue(3_000, 3_000, 100), MicronsPerPixel(0.6), spec)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("mpp", value) for value in (0, -1, float("nan"), float("inf"), "0.5", True)],
        *[("patch_size", value) for value in (0, -256, 256.0, True, "256")],
        *[("overlap", value) for value in (-1, 256, 1000, 0.5)],
        *[("min_tissue", value) for value in (-0.1, 1.1, float("nan"), "half")],
    ],
)
def test_values_out_of_range_are_rejected_by_name(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"^{name} is .*; expected"):
        TileSpec(**{name: value})


def test_a_hundred_thousand_tiles_are_laid_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "_CHUNK_ROWS", 64)
    tiles = lay_tiles(make_full_tissue(82_000, 82_000, 200.0), MicronsPerPixel(0.5), TileSpec())
    assert len(tiles) == 320**2


def test_tiles_without_microns_are_counted_in_pixels_of_the_image() -> None:
    spec = TileSpec(mpp=None, patch_size=115, overlap=15)
    tiles = lay_tiles(make_full_tissue(700, 460), None, spec)
    assert (tiles.side, tiles.stride, tiles.tile_px) == (115, 100, 115)
    assert len(tiles) == 6 * 4
    assert spec.tissue_mpp == pytest.approx(128 / 115)


TISSUE = Tissue(np.random.default_rng(0).random((60, 80)) > 0.5, 64.0, (5120, 3840))


def write_example(path: Path, mpp: float = 0.2527) -> Tiles:
    spec, slide_mpp = TileSpec(overlap=32), MicronsPerPixel(mpp)
    tiles = lay_tiles(TISSUE, slide_mpp, spec)
    write_tiles(path, "TCGA-é-1", tiles, TISSUE, slide_mpp, spec)
    return tiles


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "slide.h5"


@pytest.mark.parametrize("mpp", [0.2527, 0.25, 4.0 / 9])
def test_a_file_holds_the_tiles_and_what_they_depend_on(path: Path, mpp: float) -> None:
    tiles = write_example(path, mpp)
    with h5py.File(path) as file:
        assert file.attrs["layout"] == "sacmil tiles"
        np.testing.assert_array_equal(file["coords"][()], tiles.coords)
        attributes = dict(file["coords"].attrs)
    expected = {
        "side_level0": tiles.side,
        "stride_level0": tiles.stride,
        "mpp": 0.5,
        "mpp_level0": mpp,
        "min_tissue": 0.25,
        "mask_hash": TISSUE.hash,
    }
    assert {name: attributes[name] for name in expected} == expected


def test_equal_tiles_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_example(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_trident_finds_its_names_and_types(path: Path) -> None:
    write_example(path, 0.25)
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


def test_a_failed_write_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_example(path)
    before = path.read_bytes()
    monkeypatch.setattr(tiling, "LAYOUT", object())
    with pytest.raises(TypeError):
        write_example(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_file_is_written_again_only_if_it_differs(path: Path) -> None:
    write_example(path)
    content, written = path.read_bytes(), path.stat()
    write_example(path)
    assert path.stat() == written
    for damaged in (b"", content[:500], content[:-1], content[:-9] + b"x" + content[-8:]):
        path.write_bytes(damaged)
        write_example(path)
        assert path.read_bytes() == content


def test_tiles_counted_in_pixels_state_no_microns(path: Path) -> None:
    tissue, spec = make_full_tissue(700, 460), TileSpec(mpp=None, patch_size=115)
    write_tiles(path, "field", lay_tiles(tissue, None, spec), tissue, None, spec)
    with h5py.File(path) as file:
        attributes = dict(file["coords"].attrs)
    assert (attributes["mpp"], attributes["mpp_level0"]) == ("None", "None")
    assert attributes["side_level0"] == 115
