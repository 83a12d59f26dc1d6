from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openslide
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sacmil.errors import SlideError
from sacmil.slides.pixels import choose_level, read_tile
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
