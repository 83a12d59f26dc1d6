"""The spacing check: unit mistakes are stopped, every honest way to cut tiles passes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from exhaustive import choose_count

from sacmil import Bag
from sacmil.errors import BagError, BagWarning
from sacmil.formats._spacing import check_spacing, find_grid
from sacmil.synthetic.tissue_shape import make_tissue_coords

Array = npt.NDArray[Any]


def bag(coords: Array, patch_size: float, **known: Any) -> Bag:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Bag("s", np.ones((len(coords), 1), "f4"), coords, patch_size, **known)


def grid(rows: int = 12, columns: int = 15) -> Array:
    return np.argwhere(np.ones((rows, columns)))


def subset(places: Array, share: float, seed: int = 0) -> Array:
    return places[np.random.default_rng(seed).random(len(places)) < share]


# Mistakes.


@pytest.mark.parametrize("shrink", [2, 4, 8, 16])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.3])
def test_pixels_of_the_tile_as_patch_size_are_stopped(shrink: int, share: float) -> None:
    coords = subset(grid(30, 30), share) * 256 * shrink
    with pytest.raises(BagError) as raised:
        check_spacing(bag(coords, 256))
    message = str(raised.value)
    assert f"tiles are {256 * shrink} apart, {shrink} times the stated patch size 256" in message
    assert f"`patch_size={256 * shrink}`" in message
    assert "patch_size_level0" in message
    check_spacing(bag(coords, 256 * shrink))


@pytest.mark.parametrize("mpp", [0.2303, 0.2425, 0.2527, 0.265])
def test_they_are_stopped_at_every_resolution_called_40x(mpp: float) -> None:
    coords = np.round(grid() * 128 / mpp).astype(int)
    with pytest.raises(BagError, match="patch_size_level0"):
        check_spacing(bag(coords, 256))
    check_spacing(bag(coords, 128 / mpp))
    check_spacing(bag(coords, round(128 / mpp)))


@pytest.mark.parametrize("mpp", [0.1725, 0.2303, 0.25, 0.2527, 0.46, 0.3])
@pytest.mark.parametrize("share", [1.0, 0.3])
def test_microns_as_pixels_are_stopped(mpp: float, share: float) -> None:
    coords = subset(grid(30, 30), share) * 512 * mpp
    with pytest.raises(BagError, match=r"look like microns \(µm per pixel is .*divide them"):
        check_spacing(bag(coords, 512, mpp=mpp))


@pytest.mark.parametrize("mpp", [0.5, 0.499])
def test_microns_of_a_20x_scan_look_like_an_overlap_and_are_only_warned_of(mpp: float) -> None:
    with pytest.warns(BagWarning, match="may be in microns"):
        check_spacing(bag(grid() * 256 * mpp, 256, mpp=mpp))


def test_microns_as_patch_size_are_stopped() -> None:
    with pytest.raises(BagError, match="or microns"):
        check_spacing(bag(grid() * 512, 128, mpp=0.25))


def test_centres_are_warned_of() -> None:
    with pytest.warns(BagWarning, match="subtract half a patch"):
        check_spacing(bag(grid() * 512 + 256, 512))


def test_tiles_with_gaps_between_them_are_warned_of() -> None:
    with pytest.warns(BagWarning, match=r"256 apart, 1\.14 times .*`stride=256`"):
        check_spacing(bag(grid() * 256, 224))


def test_the_verdict_is_the_same_wherever_the_slide_begins_and_in_any_order() -> None:
    places = subset(grid(), 0.7) * 512 - 100_000
    order = np.random.default_rng(0).permutation(len(places))
    for coords in (places, places[order], places[:, ::-1]):
        with pytest.raises(BagError):
            check_spacing(bag(coords, 256))


# Honest tiles: no error, and no warning (which pytest makes an error).


@pytest.mark.parametrize("seed", range(4))
def test_tissue_of_any_shape_passes(seed: int) -> None:
    check_spacing(bag(np.asarray(make_tissue_coords(1000, seed=seed)) * 512, 512, mpp=0.25))


@pytest.mark.parametrize("share", [0.02, 0.05, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("seed", range(10))
def test_a_random_subset_of_a_grid_passes(share: float, seed: int) -> None:
    check_spacing(bag(subset(grid(60, 60), share, seed) * 512 + 7, 512, mpp=0.25))


@pytest.mark.slow
def test_many_small_random_subsets_pass() -> None:
    for seed in range(choose_count(10_000, sample=1000)):
        random = np.random.default_rng(seed)
        places = subset(grid(*random.integers(3, 40, 2)), random.random(), seed)
        if len(places):
            check_spacing(bag(places * 512 + 7, 512, mpp=0.25))


@pytest.mark.parametrize("stride", [384, 256, 170, 400, 500])
def test_an_overlap_passes_whether_stated_or_not(stride: int) -> None:
    check_spacing(bag(grid() * stride, 512, mpp=0.25))
    check_spacing(bag(grid() * stride, 512, mpp=0.25, stride=stride))


@pytest.mark.parametrize("stride", [128, 1024, 2048])
def test_what_would_be_rejected_passes_once_the_stride_is_stated(stride: int) -> None:
    suspicious = grid() * stride
    with pytest.raises(BagError, match=f"`stride={stride}`"):
        check_spacing(bag(suspicious, 512, mpp=0.25))
    check_spacing(bag(suspicious, 512, mpp=0.25, stride=stride))


@pytest.mark.parametrize("tiles", range(1, 8))
def test_a_handful_of_tiles_passes(tiles: int) -> None:
    check_spacing(bag(grid(1, 8)[:tiles] * 1024, 512, mpp=0.25))
    check_spacing(bag(np.zeros((tiles, 2), int), 512))


@pytest.mark.parametrize("seed", range(10))
def test_grids_that_begin_anew_in_every_contour_pass(seed: int) -> None:
    random = np.random.default_rng(seed)
    contours = [
        grid(*random.integers(2, 9, 2)) * 512 + random.integers(0, 80_000, 2) for _ in "abcdef"
    ]
    check_spacing(bag(np.concatenate(contours), 512, mpp=0.25))


@pytest.mark.parametrize("instances", [50, 500, 20_000])
def test_patches_around_nuclei_pass(instances: int) -> None:
    coords = np.random.default_rng(0).integers(0, 5000, (instances, 2))
    check_spacing(bag(coords, 64, mpp=0.25))
    check_spacing(bag(coords * 0.7, 64, mpp=0.25))


@pytest.mark.parametrize("patch_size", [1, 2, 16.5, 50, 506.53])
def test_rounding_to_whole_pixels_passes(patch_size: float) -> None:
    check_spacing(bag(np.round(grid() * patch_size), patch_size, mpp=4.0))


def test_a_few_stray_tiles_do_not_hide_a_mistake() -> None:
    stray = np.random.default_rng(0).integers(0, 10_000, (6, 2))
    with pytest.raises(BagError):
        check_spacing(bag(np.concatenate([grid() * 512, stray]), 256))


def test_the_spacing_is_found_exactly() -> None:
    assert find_grid(grid(2, 2), min_gaps=1) == 1.0
    assert find_grid(grid(2, 2)) is None
    assert find_grid(np.zeros((5, 2), int), min_gaps=1) is None
    assert find_grid(subset(grid(40, 40), 0.3) * 347) == 347
