"""Tiles per CPU second of the fast TIFF reader and of OpenSlide, on one generated JPEG pyramid.

Run: python -m benchmarks.readers --side 8192
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tifffile

from sacmil.slides.readers._base import Slide
from sacmil.slides.readers.openslide import OpenSlideSlide
from sacmil.slides.readers.tiff import TiffSlide, open_slide

TILE = 256


def write_pyramid(path: Path, side: int) -> None:
    """Five levels of noise over soft blobs, about as hard to decode as tissue."""
    random = np.random.default_rng(0)
    coarse = random.integers(120, 250, (side // 64, side // 64, 3), dtype=np.uint8)
    pixels = coarse.repeat(64, axis=0).repeat(64, axis=1)
    pixels += random.integers(0, 6, (side, side, 1), dtype=np.uint8)
    with tifffile.TiffWriter(path) as file:
        for level in range(5):
            file.write(
                pixels[:: 2**level, :: 2**level],
                tile=(TILE, TILE),
                photometric="ycbcr",
                subsampling=(2, 2),
                compression="jpeg",
                compressionargs={"level": 80},
                subfiletype=1 if level else 0,
                metadata=None,
                resolution=(20_000, 20_000),
                resolutionunit="CENTIMETER",
            )


def tiles_per_cpu_second(
    open_: Callable[[Path], Slide], path: Path, shift: int, count: int
) -> float:
    """Over a slide freshly opened, row by row."""
    with open_(path) as slide:
        side = slide.size[0] // TILE - 1
        places = [(TILE * (n % side) + shift, TILE * (n // side) + shift) for n in range(count)]
        start = time.process_time()
        for x, y in places:
            slide.read(x, y, 0, TILE, TILE)
        return count / (time.process_time() - start)


def main(arguments: list[str] | None = None) -> None:
    """Print tiles per CPU second and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--tiles", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    print(f"readers, {options.side:,} x {options.side:,} JPEG pyramid, tiles of {TILE} pixels")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pyramid.tif"
        write_pyramid(path, options.side)
        for words, shift in (("aligned", 0), ("unaligned", 100)):
            _compare(path, words, shift, options.tiles, options.repeats)
        _time_opening(path, options.repeats)


def _compare(path: Path, words: str, shift: int, count: int, repeats: int) -> None:
    fast, reference = (
        max(tiles_per_cpu_second(open_, path, shift, count) for _ in range(repeats))
        for open_ in (TiffSlide, OpenSlideSlide)
    )
    print(
        f"  {words:<10} tiff {fast:7,.0f}   openslide {reference:7,.0f} tiles per CPU second"
        f"   {fast / reference:5.2f} x"
    )


def _time_opening(path: Path, repeats: int) -> None:
    plain, checked = (
        min(_opening(open_, path) for _ in range(repeats)) for open_ in (TiffSlide, open_slide)
    )
    print(
        f"  opening    {1e3 * plain:.1f} ms of CPU, checked against openslide {1e3 * checked:.1f}"
    )


def _opening(open_: Callable[[Path], Slide], path: Path) -> float:
    start = time.process_time()
    open_(path).close()
    return time.process_time() - start


if __name__ == "__main__":
    main()
