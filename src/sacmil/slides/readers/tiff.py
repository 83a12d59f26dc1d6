"""The fast reader: tiled TIFF and SVS pyramids, decoding the file's own tiles directly.

Where OpenSlide is installed and opens the file too, this reader is used only if both give the same
levels, resolution and pixels on the sample of `_sample_agrees`. Vendors' dialects whose tiles
overlap or whose levels are described elsewhere (NDPI, Philips, Leica, Ventana) are left to it, and
so is JPEG 2000, where decoders round differently once in a million pixels.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
import struct
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.errors import MissingExtraError, SlideError
from sacmil.slides.readers._base import Level, Pixels, Slide
from sacmil.slides.readers._registry import DamagedSlideError
from sacmil.slides.readers.openslide import OpenSlideSlide
from sacmil.units import MicronsPerPixel

PRIORITY = 10
CACHE_BYTES = 96 * 2**20
"""Of decoded tiles: more than a row of 256-pixel tiles across a slide 100,000 pixels wide."""

_WHITE = 255
_MOST_PAGES = 1000  # a damaged file may chain without end
_LARGEST_TILE = 8192 * 8192
_VENDORS = ("ndpi", "philips", "scn", "bif", "lsm", "stk", "qpi")
_JPEG, _END_OF_JPEG = 7, b"\xff\xd9"
_JPEG_2000 = {33005, 34712}
_COMPRESSIONS = {1, 5, _JPEG, 8, 32946} | _JPEG_2000  # 1: none, 5: LZW, 8 and 32946: deflate
_GREY, _RGB, _YCBCR = 1, 2, 6
_MICRONS = {2: 25_400.0, 3: 10_000.0}  # inch, centimetre
_OME_UNITS = {"nm": 1e-3, "µm": 1.0, "mm": 1e3}


class TiffSlide(Slide):
    """A tiled TIFF; unlike ``open_slide`` it is not compared with OpenSlide."""

    reader = "tiff"

    def __init__(self, path: Path, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.path = path
        self._tiles = _TileCache(cache_bytes)
        with _tifffile_silent():
            self._file = _open(path)
            try:
                self._grids = _grids(path, self._file)
                self.mpp = _mpp(self._file.pages.first)
            except Exception as error:  # a parser of damaged files raises anything
                self.close()
                if isinstance(error, SlideError):
                    raise
                raise SlideError(f"{path}: the TIFF's directory is damaged ({error!r})") from error
        self.levels = tuple(grid.level for grid in self._grids)

    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        """A region of a level; what lies outside the slide, or was not scanned, is white."""
        grid = self._grids[level]
        left, top = (math.floor(place / grid.level.downsample + 0.5) for place in (x, y))
        region = np.full((height, width, 3), _WHITE, dtype=np.uint8)
        for row, column in grid.tiles_of(left, top, width, height):
            tile = self._tile(level, row, column)
            if tile is not None:
                tile_top, tile_left = row * grid.tile_height, column * grid.tile_width
                _paste(region, tile, left=tile_left - left, top=tile_top - top)
        return region

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def _tile(self, level: int, row: int, column: int) -> Pixels | None:
        grid = self._grids[level]
        index = row * grid.columns + column
        if grid.lengths[index] == 0 or grid.offsets[index] == 0:
            return None
        tile = self._tiles.get((level, index))
        if tile is None:
            try:
                tile = grid.clip(self._decoded(grid, index), row, column)
            except Exception as error:  # codecs raise anything
                raise SlideError(
                    f"{self.path}: tile {column}, {row} of level {level} cannot be decoded "
                    f"({error})"
                ) from error
            self._tiles.put((level, index), tile)
        return tile

    def _decoded(self, grid: _Grid, index: int) -> Pixels:
        length = int(grid.lengths[index])
        self._file.filehandle.seek(int(grid.offsets[index]))
        data = self._file.filehandle.read(length)
        if len(data) < length:
            raise ValueError(f"it has {len(data):,} of {length:,} bytes")
        tables = {}
        if grid.page.compression == _JPEG:
            _check_jpeg(data, grid)
            tables = {"jpegtables": grid.page.jpegtables}
        tile = grid.page.decode(data, index, **tables)[0][0]
        return tile if tile.shape[2] == 3 else np.repeat(tile, 3, axis=2)


class _Grid:
    """The tiles of one level."""

    def __init__(self, page: Any, level: Level) -> None:
        self.page, self.level = page, level
        self.tile_width, self.tile_height = int(page.tilewidth), int(page.tilelength)
        self.columns = -(-level.width // self.tile_width)
        self.rows = -(-level.height // self.tile_height)
        self.offsets = np.asarray(page.dataoffsets, dtype=np.uint64)
        self.lengths = np.asarray(page.databytecounts, dtype=np.uint64)

    def tiles_of(self, left: int, top: int, width: int, height: int) -> Iterator[tuple[int, int]]:
        """Row and column of every tile that a region touches."""
        rows = _span(top, height, self.tile_height, self.rows)
        return itertools.product(rows, _span(left, width, self.tile_width, self.columns))

    def clip(self, tile: Pixels, row: int, column: int) -> Pixels:
        """Without the padding of tiles that reach over the level's border."""
        height = self.level.height - row * self.tile_height
        return tile[:height, : self.level.width - column * self.tile_width]

    @property
    def end(self) -> int:
        """Where the last of the tiles ends in the file."""
        return int((self.offsets + self.lengths)[self.lengths > 0].max(initial=0))


class _TileCache:
    """Decoded tiles, as many of the latest used as fit."""

    def __init__(self, most_bytes: int) -> None:
        self._most = self._free = most_bytes
        self._tiles: OrderedDict[tuple[int, int], Pixels] = OrderedDict()

    def get(self, key: tuple[int, int]) -> Pixels | None:
        if key in self._tiles:
            self._tiles.move_to_end(key)
        return self._tiles.get(key)

    def put(self, key: tuple[int, int], tile: Pixels) -> None:
        if tile.nbytes > self._most:
            return
        self._tiles[key] = tile
        self._free -= tile.nbytes
        while self._free < 0:
            self._free += self._tiles.popitem(last=False)[1].nbytes


def open_slide(path: Path) -> Slide:
    """Open a tiled TIFF, or say why OpenSlide should read it."""
    slide = TiffSlide(path)
    try:
        _check_against_openslide(slide)
    except BaseException:
        slide.close()
        raise
    return slide


def _check_against_openslide(slide: TiffSlide) -> None:
    try:
        reference = OpenSlideSlide(slide.path)
    except (SlideError, MissingExtraError):  # it is not there, or does not know this file
        return
    with reference:
        found = _disagreement(slide, reference)
    if found:
        raise SlideError(f"{slide.path}: the fast reader's {found} differ from OpenSlide's")


def _disagreement(slide: TiffSlide, reference: OpenSlideSlide) -> str | None:
    """What the two readers see differently.

    Levels and a resolution that only we find (in OME-TIFF) are no disagreement.
    """
    if any(grid.page.compression in _JPEG_2000 for grid in slide._grids):
        return "roundings of JPEG 2000"
    if slide.size != reference.size or not set(reference.levels) <= set(slide.levels):
        return "levels"
    stated = reference.mpp
    if stated is not None and (
        slide.mpp is None or not math.isclose(stated, slide.mpp, rel_tol=1e-4)
    ):
        return "microns per pixel"
    return None if _sample_agrees(slide, reference) else "pixels"


def _sample_agrees(slide: TiffSlide, reference: OpenSlideSlide) -> bool:
    for number, level in enumerate(reference.levels):
        own = slide.levels.index(level)
        grid = slide._grids[own]
        size = grid.tile_width, grid.tile_height
        for x, y in _sample(grid):
            if not np.array_equal(
                slide.read(x, y, own, *size), reference.read(x, y, number, *size)
            ):
                return False
    return True


def _sample(grid: _Grid) -> list[tuple[int, int]]:
    """Level-0 corners of the tile with most bytes, which shows most, and of one drawn by lot.

    Only of those that lie on whole level-0 pixels: between them OpenSlide interpolates.
    """
    columns = _on_whole_pixels(grid.columns, grid.tile_width * grid.level.downsample)
    rows = _on_whole_pixels(grid.rows, grid.tile_height * grid.level.downsample)
    tiles = (rows[:, None] * grid.columns + columns).ravel()
    lot = np.random.default_rng(0).choice(tiles)
    chosen = sorted({int(tiles[grid.lengths[tiles].argmax()]), int(lot)})
    scale_x, scale_y = (
        side * grid.level.downsample for side in (grid.tile_width, grid.tile_height)
    )
    return [
        (round(index % grid.columns * scale_x), round(index // grid.columns * scale_y))
        for index in chosen
        if grid.lengths[index]
    ]


def _on_whole_pixels(count: int, step: float) -> npt.NDArray[np.int64]:
    places = np.arange(count) * step
    return np.flatnonzero(np.abs(places - np.round(places)) < 1e-6)


def _open(path: Path) -> Any:
    try:
        import imagecodecs  # noqa: F401  (tifffile decodes with it)
        import tifffile
    except ImportError:
        raise MissingExtraError("slides", "reading slides") from None
    try:
        return tifffile.TiffFile(path)
    except Exception as error:  # a parser of damaged files raises anything
        raise SlideError(f"{path}: this is no TIFF file ({error})") from error


@contextmanager
def _tifffile_silent() -> Iterator[None]:
    """It logs every oddity of a file; what matters to us is raised."""
    logger = logging.getLogger("tifffile")
    logger.addFilter(_nothing)
    try:
        yield
    finally:
        logger.removeFilter(_nothing)


def _nothing(_: logging.LogRecord) -> bool:
    return False


def _grids(path: Path, file: Any) -> list[_Grid]:
    first = file.pages.first
    vendor = next((name for name in _VENDORS if getattr(file, f"is_{name}")), None)
    if vendor or "MedScan" in str(first.software):
        raise SlideError(f"{path}: the TIFF dialect {vendor or 'Trestle'} needs OpenSlide")
    problem = _undecodable(first)
    if problem:
        raise SlideError(f"{path}: {problem}")
    _check_last_page(path, file)
    grids = [_Grid(page, _level(page, first)) for page in _level_pages(file)]
    _check_whole(path, file, grids)
    return grids


def _level_pages(file: Any) -> list[Any]:
    """The pages of the pyramid, the finest first, as OpenSlide finds them; OME keeps them aside."""
    first = file.pages.first
    pages = first.pages if first.subifds else itertools.islice(file.pages, 1, _MOST_PAGES)
    any_tiled_page = bool(first.subifds) or first.description.startswith("Aperio")
    by_width = {first.imagewidth: first}
    for page in pages:
        if (any_tiled_page or page.subfiletype == 1) and _is_level(page, first):
            by_width.setdefault(page.imagewidth, page)
    return sorted(by_width.values(), key=lambda page: -page.imagewidth)


def _is_level(page: Any, first: Any) -> bool:
    if _undecodable(page) or page.imagewidth > first.imagewidth:
        return False
    expected = first.imagelength * page.imagewidth / first.imagewidth
    return bool(abs(page.imagelength - expected) <= max(2, 0.02 * expected))


def _level(page: Any, first: Any) -> Level:
    width, height = int(page.imagewidth), int(page.imagelength)
    downsample = (first.imagewidth / width + first.imagelength / height) / 2
    return Level(width, height, downsample)


def _undecodable(page: Any) -> str | None:
    """Why this reader does not take a page, in words; None if it does."""
    if not page.is_tiled:
        return "the TIFF is not tiled"
    if page.imagedepth != 1 or page.planarconfig != 1:
        return "the TIFF holds a volume or separate colour planes"
    if page.bitspersample != 8 or (page.samplesperpixel, page.photometric) not in {
        (1, _GREY),
        (3, _RGB),
        (3, _YCBCR),
    }:
        return f"the TIFF holds {page.samplesperpixel} x {page.bitspersample} bits per pixel"
    if page.compression not in _COMPRESSIONS:
        return f"the TIFF is compressed in a way this reader does not know ({page.compression})"
    if page.photometric == _YCBCR and page.compression != _JPEG:
        return "the TIFF holds YCbCr that is not JPEG"
    tile_area = page.tilewidth * page.tilelength
    if not 0 < tile_area <= _LARGEST_TILE or 0 in (page.imagewidth, page.imagelength):
        return f"the TIFF has tiles of {page.tilewidth} x {page.tilelength} pixels"
    return None


def _check_last_page(path: Path, file: Any) -> None:
    """tifffile ends quietly where the chain of pages breaks; levels would be missing."""
    place, size = file.pages.next_page_offset, file.tiff.offsetsize
    file.filehandle.seek(place)
    if any(file.filehandle.read(size)):
        raise SlideError(f"{path}: the TIFF's chain of pages is broken, copy the file again")


def _check_whole(path: Path, file: Any, grids: list[_Grid]) -> None:
    for number, grid in enumerate(grids):
        tiles = grid.columns * grid.rows
        if len(grid.offsets) != tiles or len(grid.lengths) != tiles:
            raise DamagedSlideError(
                f"{path}: the TIFF lists {len(grid.offsets):,} tiles of level {number}; expected "
                f"{tiles:,}, copy the file again"
            )
    end, size = max(grid.end for grid in grids), file.filehandle.size
    if end > size:
        raise DamagedSlideError(
            f"{path}: the TIFF is cut off: its tiles reach to byte {end:,}, the file has "
            f"{size:,}; copy it again"
        )


def _check_jpeg(data: bytes, grid: _Grid) -> None:
    """A damaged header must not ask for gigabytes, half a tile must not pass for grey tissue."""
    if _END_OF_JPEG not in data[-16:]:  # some writers pad
        raise ValueError("its JPEG data are cut off")
    width, height = _jpeg_size(data)
    if width > grid.tile_width or height > grid.tile_height:
        raise ValueError(f"it claims {width} x {height} pixels")


def _jpeg_size(data: bytes) -> tuple[int, int]:
    place = 2
    while data[place] == 0xFF:
        marker = data[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a start of frame
            height, width = struct.unpack_from(">HH", data, place + 5)
            return width, height
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    raise ValueError("its JPEG header is damaged")


def _mpp(page: Any) -> MicronsPerPixel | None:
    description = page.description
    if description.startswith("Aperio"):
        return _mean(_found(r"\bMPP *= *([^|\s]+)", description))
    if page.is_ome:
        sizes = [_ome_size(axis, description) for axis in "XY"]
        if None not in sizes:
            return _mean(sizes)
    unit = _MICRONS.get(page.resolutionunit)
    tags = [page.tags.get(f"{axis}Resolution") for axis in "XY"]
    return None if unit is None else _mean([_inverse(unit, tag) for tag in tags])


def _mean(values: list[float | None]) -> MicronsPerPixel | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return MicronsPerPixel(sum(known) / len(known)) if len(known) == len(values) > 0 else None


def _found(pattern: str, text: str) -> list[float | None]:
    match = re.search(pattern, text)
    try:
        return [float(match[1])] if match else []
    except ValueError:
        return []


def _ome_size(axis: str, xml: str) -> float | None:
    """Looked up by pattern: nothing in a stranger's XML is expanded."""
    size = _found(rf'\bPhysicalSize{axis}="([^"]+)"', xml)
    unit = re.search(rf'\bPhysicalSize{axis}Unit="([^"]+)"', xml)
    factor = _OME_UNITS.get(unit[1].replace("μ", "µ") if unit else "µm")
    return size[0] * factor if size and size[0] and factor else None


def _inverse(unit: float, tag: Any) -> float | None:
    numerator, denominator = tag.value if tag else (0, 1)
    return unit * denominator / numerator if numerator else None


def _span(start: int, length: int, tile: int, count: int) -> range:
    return range(max(start // tile, 0), min(-(-(start + length) // tile), count))


def _paste(region: Pixels, tile: Pixels, *, left: int, top: int) -> None:
    height, width = tile.shape[:2]
    target = region[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    from_top, from_left = max(-top, 0), max(-left, 0)
    target[...] = tile[from_top:, from_left:][: target.shape[0], : target.shape[1]]
