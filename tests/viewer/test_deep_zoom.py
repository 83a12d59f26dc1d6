"""Deep Zoom tiles show the slide, whatever levels it has, and never cost much."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slide_maker import shrunk, tissue_pixels, write_slide

from sacmil.errors import SlideError
from sacmil.slides.readers import Level, Pixels, Slide, open_slide
from sacmil.viewer.deep_zoom import TILE_PX, DeepZoom

few = settings(deadline=None, max_examples=30, derandomize=True)


class FakeSlide(Slide):
    """A slide of exact levels; counts what is read of it at most."""

    reader, mpp, path = "made", None, Path("made.tif")

    def __init__(self, pixels: Pixels, downsamples: tuple[int, ...]) -> None:
        self._levels = [shrunk(pixels, factor) for factor in downsamples]
        self.levels = tuple(
            Level(p.shape[1], p.shape[0], float(f))
            for p, f in zip(self._levels, downsamples, strict=True)
        )
        self.max_read = 0

    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        self.max_read = max(self.max_read, width * height)
        factor = int(self.levels[level].downsample)
        assert x % factor == y % factor == 0
        area = self._levels[level][y // factor :, x // factor :][:height, :width]
        assert area.shape[:2] == (height, width), "nothing beyond the border needs to be read"
        return area

    def close(self) -> None:
        pass


def gradient(width: int, height: int) -> Pixels:
    """Every position has its own color."""
    across = np.linspace(0, 255, width)[None, :].repeat(height, 0)
    down = np.linspace(0, 255, height)[:, None].repeat(width, 1)
    return np.stack([across, down, 0 * down], axis=2).round().astype(np.uint8)


@few
@given(
    width=st.integers(1, 2200),
    height=st.integers(1, 1200),
    downsamples=st.sampled_from([(1,), (1, 2), (1, 4), (1, 4, 16), (1, 16), (1, 3), (1, 32)]),
    lot=st.integers(0, 2**20),
)
def test_a_tile_shows_its_area(
    width: int, height: int, downsamples: tuple[int, ...], lot: int
) -> None:
    kept = tuple(f for f in downsamples if f <= min(width, height))
    zoom = DeepZoom(FakeSlide(gradient(width, height), kept))
    assert zoom.levels == math.ceil(math.log2(max(width, height))) + 1
    level = lot % zoom.levels
    factor = 2 ** (zoom.levels - 1 - level)
    wide, high = -(-width // factor), -(-height // factor)
    x, y = lot % -(-wide // TILE_PX), lot % -(-high // TILE_PX)
    tile = zoom.read_tile(level, x, y)
    assert tile.shape == (min(TILE_PX, high - TILE_PX * y), min(TILE_PX, wide - TILE_PX * x), 3)
    center = (
        (x * TILE_PX + tile.shape[1] / 2) * factor,
        (y * TILE_PX + tile.shape[0] / 2) * factor,
    )
    shown = tile.reshape(-1, 3).mean(axis=0)
    for channel, (position, side) in enumerate(zip(center, (width, height), strict=True)):
        off = 255 * (factor + max(kept)) / side + 3  # a pixel of the level, and of its border
        assert abs(shown[channel] - 255 * min(position, side) / side) <= off


def test_a_level_of_the_same_scale_is_shown_unchanged() -> None:
    pixels = tissue_pixels(1100, 700)
    slide = FakeSlide(pixels, (1, 4))
    zoom = DeepZoom(slide)
    np.testing.assert_array_equal(zoom.read_tile(zoom.levels - 1, 2, 1), pixels[256:512, 512:768])
    np.testing.assert_array_equal(
        zoom.read_tile(zoom.levels - 3, 0, 0), shrunk(pixels, 4)[:256, :256]
    )


def test_between_levels_pixels_are_means() -> None:
    pixels = tissue_pixels(1024, 1024)
    zoom = DeepZoom(FakeSlide(pixels, (1, 4)))
    shown = zoom.read_tile(zoom.levels - 2, 1, 1).astype(int)
    assert np.abs(shown - shrunk(pixels, 2)[256:512, 256:512]).max() <= 1


@pytest.mark.parametrize("downsamples", [(1,), (1, 64)])
def test_no_tile_reads_more_than_2048_pixels_a_side(downsamples: tuple[int, ...]) -> None:
    slide = FakeSlide(np.full((3000, 4500, 3), 200, np.uint8), downsamples)
    zoom = DeepZoom(slide)
    for level in range(zoom.levels):
        assert (zoom.read_tile(level, 0, 0) == 200).all()
    assert slide.max_read <= 2048**2


def test_an_overview_is_made_once() -> None:
    slide = FakeSlide(gradient(3000, 2000), (1,))
    zoom = DeepZoom(slide)
    zoom.read_tile(0, 0, 0)
    slide.max_read = 0
    for level in range(zoom.levels - 4):
        assert zoom.read_tile(level, 0, 0) is not None
    assert slide.max_read == 0


def test_a_giant_without_small_levels_is_rejected_with_a_command() -> None:
    slide = FakeSlide(np.zeros((1, 1, 3), np.uint8), (1,))
    slide.levels = (Level(100_000, 90_000, 1.0),)
    with pytest.raises(SlideError, match=r"100,000 x 90,000 pixels; .* vips tiffsave made.tif"):
        DeepZoom(slide)


def test_a_giant_with_a_gap_in_its_levels_is_shown() -> None:
    slide = FakeSlide(np.zeros((1, 1, 3), np.uint8), (1,))
    slide.levels = (Level(100_000, 90_000, 1.0), Level(1562, 1406, 64.0))
    assert DeepZoom(slide).levels == 18


def test_levels_that_are_not_quite_what_they_should_be_leave_no_seam(tmp_path: Path) -> None:
    """2,043 / 4 is not whole: the level is a hair coarser than 4."""
    pixels = gradient(2043, 1531)
    path = write_slide(tmp_path / "a.tif", pixels, compression="deflate")
    with open_slide(path) as slide:
        zoom = DeepZoom(slide)
        row = [zoom.read_tile(zoom.levels - 3, x, 0)[100, :, 0].astype(int) for x in range(2)]
    steps = np.diff(np.concatenate(row))
    assert steps.min() >= 0
    assert steps.max() <= 2
