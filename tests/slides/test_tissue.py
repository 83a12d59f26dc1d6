"""Tissue is found by colour; glass, ink, black borders, specks and noise are not tissue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy import ndimage

from sacmil.errors import NoTissueError
from sacmil.slides.pixels import Thumbnail
from sacmil.slides.readers._base import Level, Pixels, Slide
from sacmil.slides.readers.image import ImageSlide
from sacmil.slides.tissue import (
    Tissue,
    TissueSettings,
    choose_tissue_mode,
    find_tissue,
    mark_all_as_tissue,
    mask_downsample,
)
from sacmil.units import MicronsPerPixel

PINK, PURPLE, PALE = (222, 150, 195), (130, 80, 150), (232, 212, 228)
INKS = {
    "blue": (35, 65, 170),
    "pale blue": (130, 165, 225),
    "violet": (60, 60, 165),
    "green": (30, 120, 60),
    "red": (205, 35, 45),
    "black": (28, 26, 32),
}
MPP = MicronsPerPixel(0.5)
SIDE = 400  # pixels of 8 µm: 3.2 mm


def glass(color: tuple[int, int, int] = (243, 242, 244), side: int = SIDE) -> Pixels:
    return np.full((side, side, 3), color, np.uint8)


def disc(row: float, column: float, radius: float, side: int = SIDE) -> npt.NDArray[np.bool_]:
    y, x = np.ogrid[:side, :side]
    return np.asarray((y - row) ** 2 + (x - column) ** 2 < radius**2)


def grainy(pixels: Pixels, amount: float = 3.0) -> Pixels:
    noise = np.random.default_rng(0).normal(0, amount, pixels.shape)
    return np.clip(pixels + noise, 0, 255).astype(np.uint8)


def thumb(pixels: Pixels, downsample: float = 16.0) -> Thumbnail:
    height, width = pixels.shape[:2]
    size = round(width * downsample), round(height * downsample)
    return Thumbnail(pixels, downsample, size, Path("slide.svs"))


def find(pixels: Pixels, **changes: float) -> npt.NDArray[np.bool_]:
    return find_tissue(thumb(pixels), MPP, TissueSettings(**changes)).mask


def overlap(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> float:
    return float((one & other).sum() / (one | other).sum())


@pytest.mark.parametrize("color", [PINK, PURPLE, PALE, (120, 85, 60), (140, 150, 185)])
@pytest.mark.parametrize("background", [(243, 242, 244), (255, 255, 255), (214, 212, 205)])
def test_tissue_of_any_stain_is_found_on_any_glass(
    color: tuple[int, int, int], background: tuple[int, int, int]
) -> None:
    truth = disc(200, 180, 90)
    pixels = glass(background)
    pixels[truth] = (np.array(color) * (np.array(background) / 250)).clip(0, 255)
    assert overlap(find(grainy(pixels)), truth) > 0.97


@pytest.mark.parametrize(
    "background", [(255, 255, 255), (243, 242, 244), (228, 224, 216), (190,) * 3]
)
def test_an_empty_slide_has_no_tissue_and_the_error_says_what_to_do(
    background: tuple[int, int, int],
) -> None:
    with pytest.raises(NoTissueError, match=r"slide\.svs: nothing .* preview.*QuPath.*GeoJSON"):
        find(grainy(glass(background)))


def test_shadows_scratches_and_bubbles_on_glass_are_not_tissue() -> None:
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE - 0.5
    pixels = (235 - 80 * (x**2 + y**2))[..., None] * np.array([1, 0.99, 0.98])
    pixels[:, 100:103] = 120
    pixels[disc(250, 250, 60) ^ disc(250, 250, 56)] = 140
    with pytest.raises(NoTissueError):
        find(grainy(pixels.astype(np.uint8)))


@pytest.mark.parametrize("brightness", [1.0, 0.6])
def test_a_slide_that_is_all_tissue_is_not_halved(brightness: float) -> None:
    rng = np.random.default_rng(1)
    mixture = ndimage.gaussian_filter(rng.random((SIDE, SIDE)), 6)
    mixture = (mixture - mixture.min()) / np.ptp(mixture)
    pixels = np.array(PALE) + mixture[..., None] * (np.array(PURPLE) - np.array(PALE))
    assert find((pixels * brightness).astype(np.uint8)).mean() > 0.99


@pytest.mark.parametrize("ink", INKS)
def test_a_pen_stroke_is_left_out_and_the_tissue_next_to_it_stays(ink: str) -> None:
    tissue, stroke = disc(200, 250, 100), np.zeros((SIDE, SIDE), bool)
    stroke[30:370, 60:110] = True
    pixels = glass().astype(np.float64)
    pixels[tissue] = PINK
    opacity = ndimage.gaussian_filter(stroke.astype(float), 2)[..., None]  # strokes fade out
    pixels = pixels * (1 - opacity) + np.array(INKS[ink]) * opacity
    mask = find(grainy(pixels.astype(np.uint8), 2))
    assert not mask[:, :130].any()
    assert overlap(mask, tissue) > 0.97


@pytest.mark.parametrize("ink", INKS)
def test_a_slide_with_only_ink_has_no_tissue(ink: str) -> None:
    pixels = glass()
    pixels[100:300, 150:200] = INKS[ink]
    with pytest.raises(NoTissueError):
        find(grainy(pixels))


@pytest.mark.parametrize("black", [0, 12, 40])
def test_black_borders_and_black_fill_are_not_tissue(black: int) -> None:
    truth = disc(200, 200, 80)
    pixels = np.full((SIDE, SIDE, 3), black, np.uint8)
    pixels[60:340, 60:340] = glass()[60:340, 60:340]
    pixels[truth] = PURPLE
    assert overlap(find(grainy(pixels)), truth) > 0.97


def test_white_padding_does_not_hide_the_cast_of_the_glass() -> None:
    truth = disc(200, 200, 60)
    pixels = glass((255, 255, 255))
    pixels[100:300, 100:300] = (228, 222, 216)
    pixels[truth] = PINK
    assert overlap(find(pixels), truth) > 0.97


@pytest.mark.parametrize(("radius_um", "found"), [(60, False), (80, False), (120, True)])
def test_specks_are_dropped_by_their_size_on_the_glass(radius_um: float, *, found: bool) -> None:
    pixels = glass()
    big = disc(120, 120, 50)
    pixels[big | disc(300, 300, radius_um / 8)] = PURPLE  # 0.03 mm² is a radius of 98 µm
    mask = find(pixels)
    assert mask[300, 300] == found
    assert mask[120, 120]


@pytest.mark.parametrize(("radius_um", "filled"), [(60, True), (110, True), (160, False)])
def test_holes_are_filled_by_their_size_on_the_glass(radius_um: float, *, filled: bool) -> None:
    pixels = glass()
    pixels[disc(200, 200, 120) & ~disc(200, 200, radius_um / 8)] = PURPLE  # 0.05 mm²: 126 µm
    assert find(pixels)[200, 200] == filled


@pytest.mark.parametrize("downsample", [8.0, 16.0, 24.0])
def test_sizes_do_not_depend_on_the_resolution_of_the_picture(downsample: float) -> None:
    side = round(6400 / downsample)
    px_um = downsample * MPP
    pixels = glass(side=side)
    pixels[disc(side / 3, side / 3, 600 / px_um, side)] = PURPLE
    pixels[disc(side * 0.8, side * 0.8, 75 / px_um, side)] = PURPLE
    mask = find_tissue(thumb(pixels, downsample), MPP).mask
    _, count = ndimage.label(mask)
    assert count == 1
    assert mask.sum() * (6.4 / len(mask) / 2) ** 2 == pytest.approx(np.pi * 0.36, rel=0.05)


@pytest.mark.parametrize(("turn", "flip"), [(1, False), (2, False), (3, True)])
def test_rotating_the_slide_rotates_the_mask(turn: int, *, flip: bool) -> None:
    pixels = glass()
    pixels[disc(120, 150, 70)] = PINK
    pixels[disc(280, 300, 40)] = PURPLE
    pixels[20:60, 20:200] = INKS["green"]
    pixels = grainy(pixels)
    turned = np.rot90(pixels[::-1] if flip else pixels, turn)
    expected = find(pixels)
    expected = np.rot90(expected[::-1] if flip else expected, turn)
    assert overlap(find(turned), expected) > 0.999


def test_equal_pictures_give_equal_masks_and_hashes() -> None:
    pixels = glass()
    pixels[disc(200, 200, 80)] = PINK
    one, other = (find_tissue(thumb(grainy(pixels)), MPP) for _ in range(2))
    np.testing.assert_array_equal(one.mask, other.mask)
    assert one.hash == other.hash
    changed = one.mask.copy()
    changed[0, 0] ^= True
    hashes = {
        one.hash,
        replace(one, mask=changed).hash,
        replace(one, mask=one.mask.T[:, :-1]).hash,
        replace(one, downsample=8.0).hash,
        replace(one, slide_size=(1, 2)).hash,
    }
    assert len(hashes) == 5


def test_the_share_is_that_of_the_mask() -> None:
    assert Tissue(np.eye(4, dtype=bool), 2.0, (8, 8)).share == 0.25


class PaintedSlide(Slide):
    """A pyramid with a disc of tissue, drawn when it is read."""

    reader = "painted"
    mpp = None

    def __init__(self, *levels: Level) -> None:
        self.path, self.levels = Path("painted.svs"), levels

    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        step = self.levels[level].downsample
        rows = (y + step * (np.arange(height) + 0.5)) / self.size[1] - 0.5
        columns = (x + step * (np.arange(width) + 0.5)) / self.size[0] - 0.5
        inside = rows[:, None] ** 2 + columns[None] ** 2 < 0.3**2
        return np.where(inside[..., None], PINK, (243, 243, 243)).astype(np.uint8)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("levels", "mpp"),
    [
        ([Level(1_421, 1_267, 1.0)], 0.25),
        ([Level(1_421, 1_267, 1.0)], 2.0),
        ([Level(6_003, 5_001, 1.0), Level(1_500, 1_250, 4.0012)], 0.5),
        ([Level(30_000, 26_011, 1.0), Level(937, 812, 32.03)], 0.25),
        ([Level(700, 650, 1.0)], 0.25),
    ],
)
def test_the_mask_has_the_predicted_downsample_and_the_position_of_the_tissue(
    levels: list[Level], mpp: float
) -> None:
    slide = PaintedSlide(*levels)
    no_limits = TissueSettings(min_area_mm2=0.0, max_hole_mm2=0.0, smoothing_um=0.0)
    tissue = find_tissue(slide, MicronsPerPixel(mpp), no_limits)
    assert tissue.downsample == mask_downsample(slide, MicronsPerPixel(mpp), no_limits)
    assert max(tissue.mask.shape) <= 4000
    rows, columns = np.nonzero(tissue.mask)
    center = (columns.mean() + 0.5) * tissue.downsample, (rows.mean() + 0.5) * tissue.downsample
    np.testing.assert_allclose(center, np.array(slide.size) / 2, atol=0.6 * tissue.downsample)
    assert tissue.share == pytest.approx(np.pi * 0.09, rel=0.1)


def test_a_picture_of_a_few_tiles_may_have_less_tissue_than_a_speck() -> None:
    """32 pixels of 8 µm: all of it is 0.066 mm², and a third of that would be a speck elsewhere."""
    tissue = disc(16, 16, 10, side=32)
    pixels = glass(side=32)
    pixels[tissue] = PINK
    assert overlap(find(grainy(pixels)), tissue) > 0.7
    with pytest.raises(NoTissueError):
        find(grainy(glass(side=32)))


def make_halo() -> tuple[Pixels, npt.NDArray[np.bool_]]:
    """A pale textured section, and faint smooth stain on the glass around it."""
    rng = np.random.default_rng(0)
    truth = disc(200, 200, 80)
    y, x = np.mgrid[:SIDE, :SIDE]
    away = np.maximum(np.hypot(y - 200, x - 200) - 80, 0)
    halo = np.exp(-away / 50)[..., None] * (1 - np.array([0.96, 0.90, 0.965]))
    grain = ndimage.gaussian_filter(rng.standard_normal((SIDE, SIDE)), 1)[..., None]
    stain = np.array([0.90, 0.84, 0.91]) + 0.15 * grain
    light = np.where(truth[..., None], stain, 1 - halo)
    pixels = light * (236, 233, 235) + rng.normal(0, 0.5, light.shape)
    return np.clip(pixels, 0, 255).astype(np.uint8), truth


def test_stain_on_the_glass_around_a_pale_section_is_not_tissue() -> None:
    pixels, truth = make_halo()
    assert overlap(find(pixels), truth) > 0.9


class Field(ImageSlide):
    """A plain image of given pixels."""

    def __init__(self, pixels: Pixels) -> None:
        self.path, self._pixels = Path("field.png"), pixels
        self.levels = (Level(pixels.shape[1], pixels.shape[0], 1.0),)


def make_gray_stroma(glass_columns: int = 0) -> Pixels:
    """A field of view with pink tissue and stroma that is nearly grey, some of it bare glass."""
    rng = np.random.default_rng(2)
    pink = ndimage.gaussian_filter(rng.standard_normal((460, 700)), 30)[..., None] > 0
    grain = ndimage.gaussian_filter(rng.standard_normal((460, 700)), 4)[..., None] * 60
    pixels = np.where(pink, (214, 168, 204), (205, 197, 204)) + grain
    pixels[:, :glass_columns] = (238, 234, 240)
    return np.clip(pixels, 0, 255).astype(np.uint8)


@pytest.mark.parametrize(("glass_columns", "mode"), [(0, "all"), (150, "all"), (450, "detect")])
def test_a_small_image_is_all_tissue_if_it_is_mostly_covered(glass_columns: int, mode: str) -> None:
    field = Field(make_gray_stroma(glass_columns))
    assert choose_tissue_mode(field) == mode


def test_auto_detects_in_large_images_and_pyramids_and_given_modes_are_used() -> None:
    large = Field(np.zeros((4001, 4000, 3), np.uint8))
    assert choose_tissue_mode(large) == "detect"
    assert choose_tissue_mode(PaintedSlide(Level(700, 460, 1.0))) == "detect"
    assert choose_tissue_mode(large, "all") == "all"
    assert choose_tissue_mode(Field(make_gray_stroma()), "detect") == "detect"


def test_the_whole_image_has_no_hole_and_the_predicted_downsample() -> None:
    field, mpp = Field(make_gray_stroma(100)), MicronsPerPixel(1.0)
    tissue = mark_all_as_tissue(field, mpp)
    assert tissue.share == 1
    assert tissue.downsample == mask_downsample(field, mpp)
