"""Reads a TIFF's directory: levels, positions of their tiles, resolution.

Vendor formats with overlapping tiles, or with levels described elsewhere, are rejected here.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sacmil.errors import SlideError
from sacmil.slides.readers._base import Level, Pixels
from sacmil.slides.readers._registry import DamagedSlideError
from sacmil.units import MicronsPerPixel

JPEG = 7
JPEG_2000 = {33005, 34712}

_MAX_PAGES = 1000  # in a damaged file, the chain of pages may be endless
_MAX_TILE_PIXELS = 8192 * 8192
_VENDORS = ("ndpi", "philips", "scn", "bif", "lsm", "stk", "qpi")
_COMPRESSIONS = {1, 5, JPEG, 8, 32946} | JPEG_2000  # 1: none, 5: LZW, 8 and 32946: deflate
_GRAY, _RGB, _YCBCR = 1, 2, 6
_MICRONS_PER_UNIT = {2: 25_400.0, 3: 10_000.0}  # inch, centimetre
_OME_UNITS = {"nm": 1e-3, "µm": 1.0, "mm": 1e3}


class TiffGrid:
    """The tiles of one level."""

    def __init__(self, page: Any, level: Level) -> None:
        self.page, self.level = page, level
        self.tile_width, self.tile_height = int(page.tilewidth), int(page.tilelength)
        self.columns = -(-level.width // self.tile_width)
        self.rows = -(-level.height // self.tile_height)
        self.offsets = np.asarray(page.dataoffsets, dtype=np.uint64)
        self.lengths = np.asarray(page.databytecounts, dtype=np.uint64)

    def iter_tiles(self, left: int, top: int, width: int, height: int) -> Iterator[tuple[int, int]]:
        """Return row and column of every tile that a region touches."""
        rows = _find_span(top, height, self.tile_height, self.rows)
        return itertools.product(rows, _find_span(left, width, self.tile_width, self.columns))

    def clip_tile(self, tile: Pixels, row: int, column: int) -> Pixels:
        """Remove the padding of a tile that extends over the level's border."""
        height = self.level.height - row * self.tile_height
        return tile[:height, : self.level.width - column * self.tile_width]

    @property
    def end_offset(self) -> int:
        """Position in the file at which the last tile ends."""
        return int((self.offsets + self.lengths)[self.lengths > 0].max(initial=0))


def _find_span(start: int, length: int, tile: int, count: int) -> range:
    return range(max(start // tile, 0), min(-(-(start + length) // tile), count))


def read_grids(path: Path, file: Any) -> list[TiffGrid]:
    """Return the levels of a slide, the finest first; an error says why they cannot be read."""
    first = file.pages.first
    vendor = next((name for name in _VENDORS if getattr(file, f"is_{name}")), None)
    if vendor or "MedScan" in str(first.software):
        raise SlideError(f"{path}: the TIFF dialect {vendor or 'Trestle'} needs OpenSlide")
    problem = _find_decode_problem(first)
    if problem:
        raise SlideError(f"{path}: {problem}")
    _check_last_page(path, file)
    grids = [TiffGrid(page, _make_level(page, first)) for page in _find_level_pages(file)]
    _check_complete(path, file, grids)
    return grids


def _find_level_pages(file: Any) -> list[Any]:
    """Return the pages of the pyramid as OpenSlide does, the finest first; OME has sub-pages."""
    first = file.pages.first
    pages = first.pages if first.subifds else itertools.islice(file.pages, 1, _MAX_PAGES)
    any_tiled_page = bool(first.subifds) or first.description.startswith("Aperio")
    by_width = {first.imagewidth: first}
    for page in pages:
        if (any_tiled_page or page.subfiletype == 1) and _is_level(page, first):
            by_width.setdefault(page.imagewidth, page)
    return sorted(by_width.values(), key=lambda page: -page.imagewidth)


def _is_level(page: Any, first: Any) -> bool:
    if _find_decode_problem(page) or page.imagewidth > first.imagewidth:
        return False
    expected = first.imagelength * page.imagewidth / first.imagewidth
    return bool(abs(page.imagelength - expected) <= max(2, 0.02 * expected))


def _make_level(page: Any, first: Any) -> Level:
    width, height = int(page.imagewidth), int(page.imagelength)
    downsample = (first.imagewidth / width + first.imagelength / height) / 2
    return Level(width, height, downsample)


def _find_decode_problem(page: Any) -> str | None:
    """Return why this reader cannot read a page; None if it can."""
    if not page.is_tiled:
        return "the TIFF is not tiled"
    if page.imagedepth != 1 or page.planarconfig != 1:
        return "the TIFF holds a volume or separate colour planes"
    if page.bitspersample != 8 or (page.samplesperpixel, page.photometric) not in {
        (1, _GRAY),
        (3, _RGB),
        (3, _YCBCR),
    }:
        return f"the TIFF holds {page.samplesperpixel} x {page.bitspersample} bits per pixel"
    if page.compression not in _COMPRESSIONS:
        return f"the TIFF is compressed in a way this reader does not know ({page.compression})"
    if page.photometric == _YCBCR and page.compression != JPEG:
        return "the TIFF holds YCbCr that is not JPEG"
    tile_area = page.tilewidth * page.tilelength
    if not 0 < tile_area <= _MAX_TILE_PIXELS or 0 in (page.imagewidth, page.imagelength):
        return f"the TIFF has tiles of {page.tilewidth} x {page.tilelength} pixels"
    return None


def _check_last_page(path: Path, file: Any) -> None:
    """Reject a broken chain of pages: tifffile would silently miss levels."""
    offset, size = file.pages.next_page_offset, file.tiff.offsetsize
    file.filehandle.seek(offset)
    if any(file.filehandle.read(size)):
        raise SlideError(f"{path}: the TIFF's chain of pages is broken, copy the file again")


def _check_complete(path: Path, file: Any, grids: list[TiffGrid]) -> None:
    for number, grid in enumerate(grids):
        tiles = grid.columns * grid.rows
        if len(grid.offsets) != tiles or len(grid.lengths) != tiles:
            raise DamagedSlideError(
                f"{path}: the TIFF lists {len(grid.offsets):,} tiles of level {number}; expected "
                f"{tiles:,}, copy the file again"
            )
    end, size = max(grid.end_offset for grid in grids), file.filehandle.size
    if end > size:
        raise DamagedSlideError(
            f"{path}: the TIFF is cut off: its tiles extend to byte {end:,}, but the file has "
            f"{size:,}; copy it again"
        )


def read_mpp(page: Any) -> MicronsPerPixel | None:
    """Return µm per pixel of a page, by Aperio's or OME's description before the TIFF's tags."""
    description = page.description
    if description.startswith("Aperio"):
        return _mean_mpp(_search_number(r"\bMPP *= *([^|\s]+)", description))
    if page.is_ome:
        sizes = [_read_ome_size(axis, description) for axis in "XY"]
        if None not in sizes:
            return _mean_mpp(sizes)
    unit = _MICRONS_PER_UNIT.get(page.resolutionunit)
    tags = [page.tags.get(f"{axis}Resolution") for axis in "XY"]
    return None if unit is None else _mean_mpp([_to_mpp(unit, tag) for tag in tags])


def _mean_mpp(values: list[float | None]) -> MicronsPerPixel | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return MicronsPerPixel(sum(known) / len(known)) if len(known) == len(values) > 0 else None


def _search_number(pattern: str, text: str) -> list[float | None]:
    match = re.search(pattern, text)
    try:
        return [float(match[1])] if match else []
    except ValueError:
        return []


def _read_ome_size(axis: str, xml: str) -> float | None:
    """Read a pixel size by a pattern, so that nothing in untrusted XML is expanded."""
    size = _search_number(rf'\bPhysicalSize{axis}="([^"]+)"', xml)
    unit = re.search(rf'\bPhysicalSize{axis}Unit="([^"]+)"', xml)
    factor = _OME_UNITS.get(unit[1].replace("μ", "µ") if unit else "µm")
    return size[0] * factor if size and size[0] and factor else None


def _to_mpp(unit: float, tag: Any) -> float | None:
    numerator, denominator = tag.value if tag else (0, 1)
    return unit * denominator / numerator if numerator else None
