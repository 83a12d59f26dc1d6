"""White and blurred tiles are distinguished from sharp tissue."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import ndimage

from sacmil.slides.focus import compute_sharpness, is_blurred, is_white

Pixels = npt.NDArray[np.uint8]


def cells(seed: int = 0, side: int = 256) -> Pixels:
    """Return dark nuclei of a few pixels on a pink background."""
    rng = np.random.default_rng(seed)
    points = np.zeros((side, side))
    points[tuple(rng.integers(0, side, (2, side)))] = 1
    nuclei = ndimage.gaussian_filter(points, 2.0) > 0.015
    image = np.where(nuclei[..., None], (90, 50, 130), (225, 165, 205)).astype(np.float64)
    image = ndimage.gaussian_filter(image, (0.8, 0.8, 0)) + rng.normal(0, 2, image.shape)
    return np.clip(image, 0, 255).astype(np.uint8)


def blur(tile: Pixels, sigma: float) -> Pixels:
    return ndimage.gaussian_filter(tile, (sigma, sigma, 0))


def plain_sharpness(tile: Pixels) -> float:
    red, green, blue = (tile[..., i].astype(int) for i in range(3))
    gray = (red + 2 * green + blue) // 4
    values = [
        gray[y - 1, x] + gray[y + 1, x] + gray[y, x - 1] + gray[y, x + 1] - 4 * gray[y, x]
        for y in range(1, gray.shape[0] - 1)
        for x in range(1, gray.shape[1] - 1)
    ]
    return float(np.var(values))


def test_sharpness_equals_the_plain_loop() -> None:
    tile = cells(side=24)
    assert compute_sharpness(tile) == pytest.approx(plain_sharpness(tile), rel=1e-5)


def test_a_batch_of_tiles_gives_the_same_as_each_tile_by_itself() -> None:
    tiles = np.stack([cells(0), blur(cells(1), 4), np.full((256, 256, 3), 250, np.uint8)])
    np.testing.assert_allclose(
        compute_sharpness(tiles), [compute_sharpness(tile) for tile in tiles]
    )
    assert is_blurred(tiles).tolist() == [False, True, True]
    assert is_white(tiles).tolist() == [False, False, True]


def test_sharpness_falls_with_every_bit_of_blur() -> None:
    values = [float(compute_sharpness(blur(cells(), sigma))) for sigma in (0.5, 1, 2, 3, 5)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 5


def test_sharpness_does_not_depend_on_direction_or_brightness() -> None:
    tile = np.clip(cells(), 30, 220)
    reference = compute_sharpness(tile)
    assert compute_sharpness(tile[::-1]) == pytest.approx(reference)
    assert compute_sharpness(tile.swapaxes(0, 1)) == pytest.approx(reference)
    assert compute_sharpness(tile + np.uint8(20)) == pytest.approx(reference, rel=1e-3)


def test_black_and_white_checks_do_not_overflow() -> None:
    board = np.indices((64, 64)).sum(axis=0) % 2 * np.uint8(255)
    tile = np.repeat(board[..., None], 3, axis=2).astype(np.uint8)
    assert compute_sharpness(tile) == pytest.approx(plain_sharpness(tile), rel=1e-5)
    assert plain_sharpness(tile) > 1e6


@pytest.mark.parametrize(("tissue_rows", "white"), [(0, True), (12, True), (14, False)])
def test_a_tile_is_white_up_to_its_share_of_tissue(tissue_rows: int, *, white: bool) -> None:
    tile = np.full((256, 256, 3), 243, np.uint8)
    tile[:tissue_rows] = (200, 130, 180)
    assert bool(is_white(tile)) is white


def test_pale_pink_is_not_white() -> None:
    assert not is_white(np.full((8, 8, 3), (240, 205, 230), np.uint8))
    assert is_white(np.full((8, 8, 3), (240, 215, 230), np.uint8))
    assert not is_white(np.full((8, 8, 3), (240, 215, 230), np.uint8), brightness=220)
