"""A maker of small slides: tissue-like pixels, written as the pyramids scanners write."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

Pixels = np.ndarray


@cache
def tissue_pixels(width: int, height: int, seed: int = 0) -> Pixels:
    """(height, width, 3): pink blobs with purple grain on a bright background."""
    random = np.random.default_rng(seed)
    soft = _smooth(random, width, height, cell=max(width, height) // 6 + 1)
    grain = _smooth(random, width, height, cell=5)
    tissue = (soft > 0.5)[..., None]
    pink, purple = np.array([228, 150, 190]), np.array([120, 70, 150])
    stained = pink + (purple - pink) * grain[..., None]
    bright = np.array([243, 242, 244]) + 0 * stained
    pixels = np.where(tissue, stained, bright) + random.integers(-4, 5, (height, width, 1))
    drawn = np.clip(pixels, 0, 255).astype(np.uint8)
    drawn.flags.writeable = False  # the next test gets the same
    return drawn


def _smooth(random: np.random.Generator, width: int, height: int, cell: int) -> np.ndarray:
    """Noise between 0 and 1, interpolated between points ``cell`` pixels apart."""
    points = random.random((height // cell + 2, width // cell + 2))
    rows, columns = np.arange(height) / cell, np.arange(width) / cell
    top, left = rows.astype(int), columns.astype(int)
    down, right = (rows - top)[:, None], columns - left
    upper = points[top][:, left] * (1 - right) + points[top][:, left + 1] * right
    lower = points[top + 1][:, left] * (1 - right) + points[top + 1][:, left + 1] * right
    return upper * (1 - down) + lower * down


def shrunk(pixels: Pixels, factor: int) -> Pixels:
    """The mean of every factor x factor pixels."""
    if factor == 1:
        return pixels
    height, width = (side // factor for side in pixels.shape[:2])
    whole = pixels[: height * factor, : width * factor].astype(np.float32)
    return (
        whole.reshape(height, factor, width, factor, 3).mean(axis=(1, 3)).round().astype(np.uint8)
    )


def write_slide(
    path: Path,
    pixels: Pixels,
    *,
    downsamples: tuple[int, ...] = (1, 2, 4),
    tile: int = 256,
    mpp: float | None = 0.5,
    vendor: str = "generic",
    photometric: str = "ycbcr",
    compression: str | int | None = "jpeg",
    unit: str = "CENTIMETER",
) -> Path:
    """Write a pyramid.

    Args:
        path: of the file.
        pixels: of level 0.
        downsamples: of the levels.
        tile: side of the file's own tiles.
        mpp: microns per pixel, None to state none.
        vendor: "generic" (levels are pages, mpp in tags), "aperio" (mpp in the description, a
            thumbnail as second page) or "ome" (levels are sub-pages, mpp in the XML).
        photometric: "ycbcr" or "rgb".
        compression: as tifffile names them.
        unit: of the resolution tags.
    """
    options: dict[str, Any] = {
        "tile": (tile, tile),
        "photometric": "rgb",  # of the pixels given
        "compression": compression,
        "metadata": None,
        "software": False,
    }
    if compression == "jpeg":
        options["compressionargs"] = {"level": 85, "outcolorspace": photometric}
        options["subsampling"] = (2, 2) if photometric == "ycbcr" else (1, 1)
    levels = [shrunk(pixels, factor) for factor in downsamples]
    {"generic": _write_generic, "aperio": _write_aperio, "ome": _write_ome}[vendor](
        path, levels, mpp, options | {"unit": unit}
    )
    return path


def _write_generic(path: Path, levels: list[Pixels], mpp: float | None, options: Any) -> None:
    unit = options.pop("unit")
    if mpp:
        pixels_per_unit = {"CENTIMETER": 10_000, "INCH": 25_400}[unit] / mpp
        options |= {"resolution": (pixels_per_unit,) * 2, "resolutionunit": unit}
    with tifffile.TiffWriter(path) as file:
        for number, level in enumerate(levels):
            file.write(level, subfiletype=1 if number else 0, **options)


def _write_aperio(path: Path, levels: list[Pixels], mpp: float | None, options: Any) -> None:
    options.pop("unit")
    height, width = levels[0].shape[:2]
    words = f"Aperio Image Library v11.2.1\r\n{width}x{height} [0,0 {width}x{height}]"
    stated = f"{words}|AppMag = 20|MPP = {mpp}" if mpp else f"{words}|AppMag = 20"
    with tifffile.TiffWriter(path) as file:
        file.write(levels[0], description=stated, **options)
        thumbnail = levels[-1][::2, ::2]
        file.write(thumbnail, description=words, photometric="rgb", metadata=None, software=False)
        for level in levels[1:]:
            file.write(level, description=words, **options)


def _write_ome(path: Path, levels: list[Pixels], mpp: float | None, options: Any) -> None:
    options.pop("unit")
    options["metadata"] = {"axes": "YXS", "PhysicalSizeX": mpp, "PhysicalSizeY": mpp}
    with tifffile.TiffWriter(path, ome=True) as file:
        file.write(levels[0], subifds=len(levels) - 1, **options)
        for level in levels[1:]:
            file.write(level, subfiletype=1, **(options | {"metadata": None}))
