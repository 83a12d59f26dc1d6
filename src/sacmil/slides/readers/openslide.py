"""The reference reader: all formats of OpenSlide (Aperio, Hamamatsu, Leica, MIRAX, …)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sacmil.errors import MissingExtraError, SlideError
from sacmil.slides.readers._base import Level, Pixels, Slide, average_mpp, parse_number
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
        library = _import_openslide()
        self._errors = (library.OpenSlideError, OSError, ValueError)
        try:
            self._slide: Any = library.OpenSlide(path)
            properties: dict[str, str] = dict(self._slide.properties)
            levels = zip(self._slide.level_dimensions, self._slide.level_downsamples, strict=True)
            self.levels = tuple(Level(size[0], size[1], factor) for size, factor in levels)
        except self._errors as error:
            raise SlideError(
                f"{path}: OpenSlide cannot open this file ({_describe_error(error)})"
            ) from error
        self.mpp = _read_mpp(properties)
        x, y = (parse_number(properties.get(f"openslide.bounds-{axis}")) for axis in "xy")
        self.bounds_origin = None if x is None or y is None else (int(x), int(y))
        self._background = f"#{properties.get('openslide.background-color', 'FFFFFF')}"

    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        """Read a region of a level; areas not scanned have the slide's background colour."""
        try:
            region = self._slide.read_region((x, y), level, (width, height))
        except self._errors as error:
            raise SlideError(
                f"{self.path}: OpenSlide cannot read {width} x {height} pixels at {x}, {y} of "
                f"level {level} ({_describe_error(error)})"
            ) from error
        pixels = np.asarray(region)
        if (pixels[..., 3] == 255).all():
            return np.ascontiguousarray(pixels[..., :3])
        from PIL import Image

        canvas = Image.new("RGB", region.size, self._background)
        canvas.paste(region, mask=region)
        return np.array(canvas)

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


def _read_mpp(properties: Mapping[str, str]) -> MicronsPerPixel | None:
    mpp = average_mpp([parse_number(properties.get(f"openslide.mpp-{axis}")) for axis in "xy"])
    if mpp is None and properties.get("openslide.vendor") == "generic-tiff":
        # OpenSlide reads the resolution of plain TIFFs only if it is given per centimetre.
        unit = _MICRONS_PER_UNIT.get(properties.get("tiff.ResolutionUnit", ""))
        counts = [parse_number(properties.get(f"tiff.{axis}Resolution")) for axis in "XY"]
        return average_mpp([unit / count if unit and count else None for count in counts])
    return mpp


def _describe_error(error: Exception) -> str:
    return str(error) or type(error).__name__
