"""Tiles and thumbnails have the right pixels, and white and blurred tiles are found."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openslide
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage

from sacmil.errors import SlideError
from sacmil.slides.pixels import (
    Thumbnail,
    choose_level,
    choose_source,
    compute_sharpness,
    is_blurred,
    is_white,
    make_thumbnail,
    read_tile,
    scaled_shape,
)
from sacmil.slides.readers import Level, Pixels, Slide, open_slide


class RecordingSlide(Slide):
    """A slide that remembers what was read."""

    reader, path, mpp = "ruler", Path("ruler"), None

    def __init__(self, *downsamples: float) -> None:
        self.levels = tuple(Level(9999, 9999, downsample) for downsample in downsamples)
        self.reads: list[tuple[int, ...]] = []

    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        self.reads.append((x, y, level, width, height))
        return np.zeros((1, 1, 3), np.uint8)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("reader", ["tiff", "openslide"])
@pytest.mark.parametrize(
    ("side", "patch_px", "level", "region_px"),
    [(256, 256, 0, 256), (512, 256, 1, 256), (1024, 224, 2, 256), (300, 256, 0, 300)],
)
def test_a_tile_equals_plain_openslide_and_pillow(
    make_slide: Callable[..., Path],
    reader: str,
    side: int,
    patch_px: int,
    level: int,
    region_px: int,
) -> None:
    path = make_slide(width=1600, height=1300)
    x, y = 512, 256
    with openslide.OpenSlide(path) as plain:
        region = plain.read_region((x, y), level, (region_px, region_px)).convert("RGB")
    patch = region.resize((patch_px, patch_px))  # equal sizes: a copy
    expected = patch.resize((224, 224), Image.Resampling.BILINEAR)
    with open_slide(path, reader=reader) as slide:
        tile = read_tile(slide, x, y, side, patch_px, 224, "bilinear")
    np.testing.assert_array_equal(tile, np.asarray(expected))


def test_nothing_is_resized_that_has_the_right_size(make_slide: Callable[..., Path]) -> None:
    with open_slide(make_slide()) as slide:
        full = slide.read(0, 0, 0, 900, 700)
        tile = read_tile(slide, 130, 77, 200, 200, 200, "bicubic")
    np.testing.assert_array_equal(tile, full[77:277, 130:330])


def test_pixels_beyond_the_border_are_white(make_slide: Callable[..., Path]) -> None:
    with open_slide(make_slide()) as slide:
        tile = read_tile(slide, 800, 600, 256, 256, 256, "bicubic")
    assert (tile[100:] == 255).all()
    assert (tile[:, 100:] == 255).all()
    assert (tile[:100, :100] != 255).any()


@pytest.mark.parametrize(
    ("wanted", "level"),
    [(1, 0), (1.9, 0), (2, 1), (3.9, 1), (4, 2), (4.0003, 2), (50, 2), (0.5, 0)],
)
def test_the_coarsest_level_that_is_fine_enough_is_read(wanted: float, level: int) -> None:
    assert choose_level(RecordingSlide(1.0, 2.0, 4.0003), wanted) == level


@settings(deadline=None)
@given(
    st.integers(0, 50_000),
    st.floats(40, 3000),
    st.sampled_from([(1.0,), (1.0, 4.0), (1.0, 4.00036, 16.0027)]),
)
def test_neighbours_meet_within_a_pixel_of_the_level(
    x: int, side: float, downsamples: tuple[float, ...]
) -> None:
    slide = RecordingSlide(*downsamples)
    for left in (x, round(x + side)):
        read_tile(slide, left, 0, side, 128, 128, "bilinear")
    (first, _, level, width, _), (second, _, other, other_width, _) = slide.reads
    assert (level, width) == (other, other_width)
    downsample = slide.levels[level].downsample
    assert abs(first + width * downsample - second) <= 1.5 * downsample + 1
    assert abs(first - x) <= downsample / 2 + 0.5


def test_a_uniform_color_stays_the_same_at_every_size(tmp_path: Path) -> None:
    path = tmp_path / "plain.png"
    Image.new("RGB", (600, 600), (200, 120, 160)).save(path)
    with open_slide(path) as slide:
        for side, patch_px, input_px in ((256.5, 256, 224), (100, 256, 224), (513, 256, 518)):
            tile = read_tile(slide, 10, 20, side, patch_px, input_px, "bicubic")
            assert (tile == (200, 120, 160)).all()
            assert tile.shape == (input_px, input_px, 3)


def test_an_unknown_resampling_is_rejected(make_slide: Callable[..., Path]) -> None:
    with open_slide(make_slide()) as slide, pytest.raises(SlideError, match="mean 'bicubic'"):
        read_tile(slide, 0, 0, 256, 256, 224, "cubic")


class ArraySlide(Slide):
    """A pyramid of arrays."""

    reader = "array"
    mpp = None

    def __init__(self, *arrays: Pixels) -> None:
        self.path = Path("array.svs")
        self._arrays = arrays
        full = arrays[0].shape[1]
        self.levels = tuple(Level(a.shape[1], a.shape[0], full / a.shape[1]) for a in arrays)

    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        downsample = self.levels[level].downsample
        left, top = round(x / downsample), round(y / downsample)
        region = np.full((height, width, 3), 255, np.uint8)
        found = self._arrays[level][top : top + height, left : left + width]
        region[: found.shape[0], : found.shape[1]] = found
        return region

    def close(self) -> None: ...


class EndlessSlide(Slide):
    """A slide without stored pixels that notes the largest region read."""

    reader = "endless"
    mpp = None

    def __init__(self, *levels: Level) -> None:
        self.path, self.levels = Path("endless.svs"), levels
        self.largest_read = 0

    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        self.largest_read = max(self.largest_read, width * height)
        return np.broadcast_to(np.uint8(x // 1000 % 256), (height, width, 3))

    def close(self) -> None: ...


def noise(height: int, width: int, seed: int = 0) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def plain_means(pixels: Pixels, factor: int) -> Pixels:
    height, width = (-(-side // factor) for side in pixels.shape[:2])
    means = np.empty((height, width, 3), np.uint8)
    padding = ((0, height * factor - len(pixels)), (0, width * factor - pixels.shape[1]), (0, 0))
    padded = np.pad(pixels, padding, mode="edge").astype(np.int64)
    for row in range(height):
        for column in range(width):
            block = padded[row * factor :, column * factor :][:factor, :factor]
            means[row, column] = (block.sum(axis=(0, 1)) + factor**2 // 2) // factor**2
    return means


@given(
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    factor=st.integers(1, 9),
    seed=st.integers(),
)
def test_each_pixel_is_the_mean_of_its_block(
    height: int, width: int, factor: int, seed: int
) -> None:
    pixels = noise(height, width, abs(seed))
    small = make_thumbnail(ArraySlide(pixels), factor)
    np.testing.assert_array_equal(small.pixels, plain_means(pixels, factor))
    assert small.downsample == factor
    assert small.slide_size == (width, height)


def test_chunks_join_without_a_seam() -> None:
    pixels = noise(700, 4500)
    small = make_thumbnail(ArraySlide(pixels), 7)
    blocks = pixels[:700, :4494].reshape(100, 7, 642, 7, 3).mean(axis=(1, 3))
    assert np.abs(small.pixels[:100, :642] - blocks).max() <= 0.5


def test_shrinking_a_thumbnail_equals_a_smaller_one_to_rounding() -> None:
    slide = ArraySlide(noise(240, 360))
    twice, direct = make_thumbnail(slide, 3).shrink(4), make_thumbnail(slide, 12)
    assert twice.downsample == direct.downsample == 12
    assert np.abs(twice.pixels.astype(int) - direct.pixels).max() <= 1


@pytest.mark.parametrize(
    ("wanted", "level", "factor"),
    [(1, 0, 1), (3, 0, 3), (4, 1, 1), (15.9, 2, 1), (16, 2, 1), (40, 2, 2), (0.2, 0, 1)],
)
def test_a_thumbnail_is_made_of_the_coarsest_level_that_is_fine_enough(
    wanted: float, level: int, factor: int
) -> None:
    levels = Level(40_000, 30_000, 1.0), Level(10_000, 7_500, 4.0), Level(2_500, 1_874, 16.003)
    assert choose_source(EndlessSlide(*levels), wanted, max_side=50_000)[:2] == (level, factor)


@given(
    width=st.integers(1, 400_000),
    height=st.integers(1, 400_000),
    wanted=st.floats(0.01, 1000),
    coarse=st.sampled_from([2.0, 3.99, 16.0, 64.1]),
)
def test_no_side_exceeds_the_limit_and_nothing_is_coarser_than_needed(
    width: int, height: int, wanted: float, coarse: float
) -> None:
    small = Level(max(1, int(width / coarse)), max(1, int(height / coarse)), coarse)
    slide = EndlessSlide(Level(width, height, 1.0), small)
    source = choose_source(slide, wanted)
    assert max(scaled_shape(slide.size, source.downsample)) <= 4000
    needed = max(1, wanted, max(width, height) / 4000)
    assert source.downsample <= 2 * needed + 1


def test_one_level_of_a_hundred_thousand_pixels_needs_little_memory() -> None:
    slide = EndlessSlide(Level(100_000, 2_500, 1.0))
    tracemalloc.start()
    small = make_thumbnail(slide, 32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert small.pixels.shape == (79, 3125, 3)
    assert slide.largest_read <= 2048**2
    assert peak < 64 * 2**20


def test_tissue_at_the_border_does_not_become_paler() -> None:
    pink = np.full((10, 10, 3), (200, 120, 180), np.uint8)
    assert (make_thumbnail(ArraySlide(pink), 4).pixels == (200, 120, 180)).all()
    assert isinstance(make_thumbnail(ArraySlide(pink), 4), Thumbnail)


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
