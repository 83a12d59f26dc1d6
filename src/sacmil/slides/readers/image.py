"""Plain images (PNG, JPEG, BMP, untiled TIFF) as slides of one level, through Pillow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sacmil.errors import MissingExtraError, SlideError
from sacmil.slides.readers._base import Level, Pixels, Slide, paste_picture

PRIORITY = 30
MAX_PIXELS = 400_000_000
"""20,000 x 20,000: a larger plain image is a mistake or a decompression bomb."""
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
_TILE_WIDTH_TAG = 322  # a TIFF tag: files that have it are pyramids, not plain images


class ImageSlide(Slide):
    """A plain image, held in memory.

    It never states µm per pixel: the DPI in an image file are meant for paper.
    """

    reader = "image"
    mpp = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pixels = _load_pixels(path)
        height, width, _ = self._pixels.shape
        self.levels = (Level(width, height, 1.0),)

    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        """Read a region; pixels outside the image are white."""
        if level != 0:
            raise SlideError(f"{self.path}: there is no level {level}; an image has only level 0")
        region = np.full((height, width, 3), 255, dtype=np.uint8)
        paste_picture(region, self._pixels, left=-x, top=-y)
        return region

    def close(self) -> None:
        """Free the pixels."""
        self._pixels = np.zeros((0, 0, 3), dtype=np.uint8)


def open_slide(path: Path) -> Slide:
    """Open a plain image; the error says why that is not possible."""
    return ImageSlide(path)


def _load_pixels(path: Path) -> Pixels:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("slides", "reading slides") from None
    with _lift_pillow_limit(Image):
        try:
            image = Image.open(path, formats=_FORMATS)
        except Exception as error:  # a parser of damaged files raises anything
            raise SlideError(f"{path}: this is not a PNG, JPEG, BMP or TIFF image") from error
        with image:
            _check_image(path, image)
            try:
                return _to_rgb(image)
            except Exception as error:
                raise SlideError(
                    f"{path}: the {image.format} image cannot be decoded ({error})"
                ) from error


@contextmanager
def _lift_pillow_limit(module: Any) -> Iterator[None]:
    """Disable Pillow's limit on pixels and its warnings; ours is checked before decoding."""
    limit = module.MAX_IMAGE_PIXELS
    module.MAX_IMAGE_PIXELS = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        module.MAX_IMAGE_PIXELS = limit


def _check_image(path: Path, image: Any) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise SlideError(
            f"{path}: the image has {width:,} x {height:,} pixels; expected at most "
            f"{MAX_PIXELS:,} in a plain image, convert it to a tiled pyramidal TIFF"
        )
    if _TILE_WIDTH_TAG in getattr(image, "tag_v2", {}):
        raise SlideError(f"{path}: this is a tiled TIFF, not a plain image")


def _to_rgb(image: Any) -> Pixels:
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits; Pillow's own conversion would clip, not scale
        gray = np.clip(np.asarray(image), 0, 65_535).astype(np.uint16) >> 8
        return np.repeat(gray.astype(np.uint8)[..., None], 3, axis=2)
    if image.mode == "F":
        raise ValueError("its pixels are floats of unknown range; expected 8 or 16 bits")
    if image.has_transparency_data:
        canvas = Image.new("RGB", image.size, "white")
        image = image.convert("RGBA")
        canvas.paste(image, mask=image)
        return np.array(canvas)
    return np.array(image.convert("RGB"))
