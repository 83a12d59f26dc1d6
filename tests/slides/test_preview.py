"""Previews show the tissue's border, its holes and the tiles where they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sacmil.slides.pixels import Thumbnail
from sacmil.slides.preview import draw_preview
from sacmil.slides.tiling import Tiles, TileSpec, lay_tiles
from sacmil.slides.tissue import Tissue
from sacmil.units import MicronsPerPixel

Image = pytest.importorskip("PIL.Image")
BACKGROUND = (240, 240, 240)


def make(
    side: int = 300, downsample: float = 16.0, patch_size: int = 512
) -> tuple[Thumbnail, Tissue, Tiles]:
    size = round(side * downsample), round(side * downsample)
    mask = np.zeros((side, side), bool)
    mask[side // 4 : 3 * side // 4, side // 4 : 3 * side // 4] = True
    mask[4 * side // 10 : 6 * side // 10, 4 * side // 10 : 6 * side // 10] = False
    pixels = np.full((side, side, 3), BACKGROUND, np.uint8)
    tissue = Tissue(mask, downsample, size)
    tiles = lay_tiles(tissue, MicronsPerPixel(0.5), TileSpec(patch_size=patch_size))
    return Thumbnail(pixels, downsample, size, Path("slide.svs")), tissue, tiles


def draw(
    path: Path, thumb: Thumbnail, tissue: Tissue | None, tiles: Tiles | None, *, title: str = ""
) -> npt.NDArray[np.int64]:
    draw_preview(thumb, tissue, tiles, path, title=title)
    with Image.open(path) as picture:
        return np.asarray(picture).astype(np.int64)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "previews" / "slide.png"


def test_the_outline_follows_the_border_of_tissue_and_hole(path: Path) -> None:
    thumb, tissue, _ = make()
    picture = draw(path, thumb, tissue, None)
    changed = np.any(picture[:1200] != BACKGROUND, axis=-1)
    row = np.flatnonzero(changed[600])
    borders = [300, 480, 720, 900]
    assert all(np.abs(row - border).min() <= 3 for border in borders)
    assert all(min(abs(column - border) for border in borders) <= 4 for column in row)


def test_tiles_are_tinted_and_framed_where_they_are_and_nowhere_else(path: Path) -> None:
    thumb, _, tiles = make()
    picture = draw(path, thumb, None, tiles)
    scale = 1200 / 4800
    covered = np.zeros((1200, 1200), bool)
    for x, y in (tiles.coords * scale).round().astype(int):
        end = round(tiles.side * scale) + 1
        covered[y : y + end, x : x + end] = True
    changed = np.any(picture[:1200] != BACKGROUND, axis=-1)
    np.testing.assert_array_equal(changed, covered)
    x, y = (tiles.coords[0] * scale).round().astype(int)
    frame, inside = picture[y, x + 5], picture[y + 5, x + 5]
    assert frame[0] < inside[0] < 240


def test_tiles_too_small_for_a_frame_leave_the_picture_visible(path: Path) -> None:
    thumb, _, tiles = make(patch_size=16)
    assert len(tiles) > 10_000
    picture = draw(path, thumb, None, tiles)
    assert picture[:1200].min() > 190


@pytest.mark.parametrize(("height", "width"), [(40, 30), (1000, 3000), (4000, 50), (1, 1)])
def test_the_picture_has_the_slides_aspect_ratio_and_at_most_1200_pixels(
    path: Path, height: int, width: int
) -> None:
    pixels = np.full((height, width, 3), BACKGROUND, np.uint8)
    thumb = Thumbnail(pixels, 8.0, (width * 8, height * 8), Path("slide.svs"))
    picture = draw(path, thumb, Tissue(np.ones((height, width), bool), 8.0, thumb.slide_size), None)
    assert max(picture.shape) <= 1200 + 34
    assert picture.shape[0] - 34 == pytest.approx(1200 * min(1, height / width), abs=1)


def test_the_line_below_says_if_there_is_no_tissue(path: Path) -> None:
    thumb, tissue, _ = make()
    none, some = draw(path, thumb, None, None), draw(path, thumb, tissue, None)
    assert (none[:1200] == BACKGROUND).all()
    assert none[1200:].min() < 60
    assert (none[1200:] != some[1200:]).any()


def test_a_long_title_of_several_lines_is_cut_to_the_width(path: Path) -> None:
    thumb, tissue, tiles = make()
    picture = draw(path, thumb, tissue, tiles, title="slide-\n" * 200)
    assert (picture[1200:, -8:] == 255).all()


def test_equal_input_gives_equal_bytes_and_no_partial_file(path: Path) -> None:
    draw(path, *make(), title="é")
    first = path.read_bytes()
    draw(path, *make(), title="é")
    assert path.read_bytes() == first
    assert [file.name for file in path.parent.iterdir()] == ["slide.png"]
