"""The reference reader: all formats of OpenSlide (Aperio, Hamamatsu, Leica, MIRAX, …)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sacmil.errors import MissingExtraError, SlideError
from sacmil.slides.readers._base import Level, Pixels, Slide
from sacmil.units import MicronsPerPixel

PRIORITY = 20
_MICRONS_PER_UNIT = {"centimeter": 10_000.0, "inch": 25_400.0}


class OpenSlideSlide(Slide):
    """A slide read with OpenSlide.

    After one failed read, every later read of the same open slide fails.
    """

    reader = "openslide"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = _import_openslide()
        try:
            self._slide: Any = self._library.OpenSlide(path)
            properties: dict[str, str] = dict(self._slide.properties)
            sizes = self._slide.level_dimensions
            downsamples = self._slide.level_downsamples
        except (self._library.OpenSlideError, OSError, ValueError) as error:
            raise SlideError(
                f"{path}: OpenSlide cannot open this file ({_describe_error(error)})"
            ) from error
        self.levels = tuple(
            Level(width, height, downsample)
            for (width, height), downsample in zip(sizes, downsamples, strict=True)
        )
        self.mpp = _read_mpp(properties)
        self.bounds_origin = _read_bounds_origin(properties)
        self._background = f"#{properties.get('openslide.background-color', 'FFFFFF')}"

    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        """Read a region of a level; areas not scanned have the slide's background colour."""
        try:
            region = self._slide.read_region((x, y), level, (width, height))
        except (self._library.OpenSlideError, OSError, ValueError) as error:
            raise SlideError(
                f"{self.path}: OpenSlide cannot read {width} x {height} pixels at {x}, {y} of "
                f"level {level} ({_describe_error(error)})"
            ) from error
        pixels = np.asarray(region)
        if (pixels[..., 3] == 255).all():
            return np.ascontiguousarray(pixels[..., :3])
        return _paste_on_background(region, self._background)

    def close(self) -> None:
        """Close the file."""
        self._slide.close()


def open_slide(path: Path) -> Slide:
    """Open a file with OpenSlide; the error says why that is not possible."""
    return OpenSlideSlide(path)


def _import_openslide() -> ModuleType:
    try:
        import openslide
    except (ImportError, OSError):  # OSError: the package is installed, its C library is not
        raise MissingExtraError("slides", "reading slides") from None
    module: ModuleType = openslide
    return module


def _paste_on_background(region: Any, background: str) -> Pixels:
    from PIL import Image

    canvas = Image.new("RGB", region.size, background)
    canvas.paste(region, mask=region)
    return np.array(canvas)


def _read_mpp(properties: Mapping[str, str]) -> MicronsPerPixel | None:
    x, y = (_parse_number(properties.get(f"openslide.mpp-{axis}")) for axis in "xy")
    if (x is None or y is None) and properties.get("openslide.vendor") == "generic-tiff":
        # OpenSlide reads the resolution of plain TIFFs only if it is given per centimetre.
        unit = _MICRONS_PER_UNIT.get(properties.get("tiff.ResolutionUnit", ""))
        x, y = (_to_mpp(unit, _parse_number(properties.get(f"tiff.{a}Resolution"))) for a in "XY")
    return None if x is None or y is None else MicronsPerPixel((x + y) / 2)


def _to_mpp(unit: float | None, pixels: float | None) -> float | None:
    return unit / pixels if unit and pixels else None


def _parse_number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _read_bounds_origin(properties: Mapping[str, str]) -> tuple[int, int] | None:
    x, y = (_parse_number(properties.get(f"openslide.bounds-{axis}")) for axis in "xy")
    return None if x is None or y is None else (int(x), int(y))


def _describe_error(error: Exception) -> str:
    return str(error) or type(error).__name__
