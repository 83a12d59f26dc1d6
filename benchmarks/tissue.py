"""Tiles kept on images where the truth is known: fields of view, and pale sections with a halo.

Fields are 700 x 460 pixels and all tissue, as microscope cameras take them; half of them have a
lumen. Sections are large and pale, with faint stain on the glass around them, vignetting and JPEG
noise. A tile is tissue where at least a quarter of it is, glass where nothing of it is.

Run: python -m benchmarks.tissue --seeds 6
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy import ndimage

from sacmil.errors import NoTissueError
from sacmil.slides.readers._base import Level
from sacmil.slides.readers.image import ImageSlide
from sacmil.slides.tiling import TileSpec, lay_tiles
from sacmil.slides.tissue import Tissue, choose_tissue_mode, find_tissue, mark_all_as_tissue
from sacmil.units import MicronsPerPixel

PALE, STROMA, NUCLEUS = (222, 205, 226), (214, 168, 204), (118, 82, 148)
GREY_STROMA = (219, 212, 218)
"""Stains as seen in white light."""
HALO = (0.96, 0.90, 0.965)
"""Share of the light a halo of faint stain lets through at its strongest."""
LAMPS, SCANNER = ((242, 232, 247), (238, 232, 240)), (236, 233, 235)
"""Light of two microscopes' cameras and of a scanner."""


def main(arguments: list[str] | None = None) -> None:
    """Print tiles kept, by kind of image."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4, help="images of each kind")
    seeds = range(parser.parse_args(arguments).seeds)
    report("fields", [make_field(seed) for seed in seeds], side=115)
    report("fields with a lumen", [make_field(seed, lumen=True) for seed in seeds], side=115)
    report("pale sections with a halo", [make_section(seed) for seed in seeds], side=64)


class Picture(NamedTuple):
    """Pixels, and where the tissue is."""

    pixels: np.ndarray
    truth: np.ndarray


def make_field(seed: int, *, lumen: bool = False) -> Picture:
    """A field of view that is all tissue: grey stroma, crowded nuclei; a lumen is bare glass."""
    random = np.random.default_rng(seed)
    shape = (460, 700)
    truth = _noise(random, shape, 60) > (-1.1 if lumen else -9)
    light = _stain(random, shape, GREY_STROMA, scale=3.0)
    light = np.where(truth[..., None], light, 1.0)
    return Picture(_photograph(random, light, LAMPS[seed % 2]), truth)


def make_section(seed: int, side: int = 2048) -> Picture:
    """A large pale section on glass, with faint stain around it; 2 µm per pixel."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side - 0.5
    bumps = ndimage.zoom(_noise(random, (side // 16,) * 2, 6), 16, order=1)[:side, :side]
    distance = np.hypot(x * 1.1, y) + 0.05 * bumps - 0.28  # in sides, from the section's border
    stain = 0.55 * _stain(random, (side, side), PALE, scale=1.0) + 0.45
    halo = np.exp(-np.maximum(distance, 0) / 0.08)[..., None]
    light = np.where(distance[..., None] < 0, stain, 1 - halo * (1 - np.array(HALO)))
    return Picture(_photograph(random, light, SCANNER), distance < 0)


def _noise(random: np.random.Generator, shape: tuple[int, int], size: float) -> np.ndarray:
    """A smooth field with mean 0 and standard deviation 1."""
    smooth = ndimage.gaussian_filter(random.standard_normal(shape).astype(np.float32), size)
    return (smooth - smooth.mean()) / smooth.std()


def _stain(
    random: np.random.Generator, shape: tuple[int, int], pale: tuple[int, ...], scale: float
) -> np.ndarray:
    """(h, w, 3), the share of light that comes through stroma and nuclei."""
    crowd = _noise(random, shape, 25 * scale)  # where nuclei crowd and eosin is strong
    pink = np.clip(0.3 + 0.5 * crowd + 0.2 * _noise(random, shape, 4 * scale), 0, 1)[..., None]
    nuclei = _noise(random, shape, 1.6 * scale) > 2.0 - 0.9 * np.clip(crowd, -1, 1.5)
    nuclei = ndimage.gaussian_filter(nuclei.astype(np.float32), 0.5 * scale)[..., None]
    colour = np.array(pale) * (1 - pink) + np.array(STROMA) * pink
    return (colour * (1 - nuclei) + np.array(NUCLEUS) * nuclei) / 255


def _photograph(
    random: np.random.Generator, through: np.ndarray, lamp: tuple[int, ...]
) -> np.ndarray:
    """As a camera sees it: a lamp with a cast, vignetting, noise, JPEG."""
    height, width = through.shape[:2]
    y, x = np.mgrid[:height, :width]
    radius = np.hypot(y / height - 0.5, x / width - 0.5)[..., None]
    pixels = through * np.array(lamp) * (1 - 0.12 * radius**2)
    pixels = pixels + random.normal(0, 2.5, pixels.shape)
    file = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return np.asarray(Image.open(file))


class Count(NamedTuple):
    """Tiles of a picture."""

    tissue: int
    """Tiles of which a quarter or more is tissue."""
    tissue_kept: int
    glass: int
    """Tiles without any tissue."""
    glass_kept: int


def count_tiles(picture: Picture, tissue: Tissue | None, side: int) -> Count:
    """How many tiles of either kind a mask keeps."""
    corners = set()
    spec = TileSpec(mpp=1.0, patch_size=side)
    one = MicronsPerPixel(1.0)
    if tissue is not None:
        corners = set(map(tuple, lay_tiles(tissue, one, spec).coords.tolist()))
    whole = Tissue(np.ones_like(picture.truth), 1.0, picture.truth.shape[::-1])
    shares = {
        (x, y): picture.truth[y : y + side, x : x + side].mean()
        for x, y in lay_tiles(whole, one, spec).coords.tolist()
    }
    is_tissue = {corner for corner, share in shares.items() if share >= 0.25}
    is_glass = {corner for corner, share in shares.items() if share == 0}
    return Count(len(is_tissue), len(is_tissue & corners), len(is_glass), len(is_glass & corners))


class MadeSlide(ImageSlide):
    """A picture as the reader of plain images would give it."""

    def __init__(self, pixels: np.ndarray) -> None:
        self.path, self._pixels = Path("made.png"), pixels
        self.levels = (Level(pixels.shape[1], pixels.shape[0], 1.0),)


def report(kind: str, pictures: list[Picture], *, side: int) -> None:
    """Tiles kept by detection and by the mode that is chosen."""
    for mode in ("detect", "auto"):
        counts, chosen = [], []
        for picture in pictures:
            slide, mpp = MadeSlide(picture.pixels), TileSpec(patch_size=side).tissue_mpp
            chosen.append(choose_tissue_mode(slide, mode))
            counts.append(count_tiles(picture, _find(slide, mpp, chosen[-1]), side))
        tissue, kept, glass, wrong = (sum(column) for column in zip(*counts, strict=True))
        modes = ", ".join(f"{one} {chosen.count(one)}" for one in sorted(set(chosen)))
        print(
            f"{kind}, --tissue {mode} ({modes}): {kept} of {tissue} tiles of tissue, "
            f"{wrong} of {glass} of glass"
        )


def _find(slide: MadeSlide, mpp: MicronsPerPixel, mode: str) -> Tissue | None:
    find: Callable[[MadeSlide, MicronsPerPixel], Tissue]
    find = mark_all_as_tissue if mode == "all" else find_tissue
    try:
        return find(slide, mpp)
    except NoTissueError:
        return None


if __name__ == "__main__":
    main()
