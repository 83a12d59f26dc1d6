"""Thumbnails: block means of the right level and position, with bounded memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacmil.slides.readers._base import Level, Pixels, Slide
from sacmil.slides.thumbnail import (
    Thumbnail,
    choose_source,
    compute_downsample,
    make_thumbnail,
    scaled_shape,
)


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
def test_the_coarsest_level_that_is_fine_enough_is_read(
    wanted: float, level: int, factor: int
) -> None:
    levels = Level(40_000, 30_000, 1.0), Level(10_000, 7_500, 4.0), Level(2_500, 1_874, 16.003)
    assert choose_source(EndlessSlide(*levels), wanted, max_side=50_000) == (level, factor)


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
    assert max(scaled_shape(slide.size, compute_downsample(slide, source))) <= 4000
    needed = max(1, wanted, max(width, height) / 4000)
    assert compute_downsample(slide, source) <= 2 * needed + 1


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
