"""The fast reader of tiled TIFF and SVS pyramids: decodes the file's own tiles directly.

If OpenSlide can open the file too, this reader is used only if both agree on levels, resolution
and the sample of pixels in `_sample_agrees`. OpenSlide reads vendor formats with overlapping tiles
or levels described elsewhere (NDPI, Philips, Leica, Ventana). It also reads JPEG 2000, where
decoders round differently once in a million pixels.
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
from sacmil.slides.readers._base import (
    DamagedSlideError,
    Level,
    Pixels,
    Slide,
    average_mpp,
    parse_number,
    paste_picture,
)
from sacmil.slides.readers.openslide import OpenSlideSlide
from sacmil.units import MicronsPerPixel

PRIORITY = 10
CACHE_BYTES = 96 * 2**20
"""Size of the tile cache: more than a row of 256-pixel tiles of a slide 100,000 pixels wide."""

_WHITE = 255
_END_OF_JPEG = b"\xff\xd9"
_MAX_PAGES = 1000  # in a damaged file, the chain of pages may be endless
_MAX_TILE_PIXELS = 8192 * 8192
_VENDORS = ("ndpi", "philips", "scn", "bif", "lsm", "stk", "qpi")
_JPEG = 7
_JPEG_2000 = {33005, 34712}
_COMPRESSIONS = {1, 5, _JPEG, 8, 32946} | _JPEG_2000  # 1: none, 5: LZW, 8 and 32946: deflate
_GRAY, _RGB, _YCBCR = 1, 2, 6
_MICRONS_PER_UNIT = {2: 25_400.0, 3: 10_000.0}  # inch, centimetre
_OME_UNITS = {"nm": 1e-3, "µm": 1.0, "mm": 1e3}


class TiffSlide(Slide):
    """A tiled TIFF; unlike ``open_slide`` it is not compared with OpenSlide."""

    reader = "tiff"

    def __init__(self, path: Path, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.path = path
        self._tiles = _TileCache(cache_bytes)
        with _silence_tifffile():
            self._file = _open_tiff(path)
            try:
                self.grids = _read_grids(path, self._file)
                self.mpp = _read_mpp(self._file.pages.first)
            except Exception as error:  # a parser of damaged files raises anything
                self.close()
                if isinstance(error, SlideError):
                    raise
                raise SlideError(f"{path}: the TIFF's directory is damaged ({error!r})") from error
        self.levels = tuple(grid.level for grid in self.grids)

    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        """Read a region of a level; pixels outside the slide or not scanned are white."""
        grid = self.grids[level]
        left, top = (math.floor(at / grid.level.downsample + 0.5) for at in (x, y))
        region = np.full((height, width, 3), _WHITE, dtype=np.uint8)
        for row, column in grid.iter_tiles(left, top, width, height):
            tile = self._get_tile(level, row, column)
            if tile is not None:
                tile_left, tile_top = column * grid.tile_width, row * grid.tile_height
                paste_picture(region, tile, left=tile_left - left, top=tile_top - top)
        return region

    def set_cache_size(self, max_bytes: int) -> None:
        """Keep at most ``max_bytes`` of decoded tiles for later reads."""
        self._tiles = _TileCache(max_bytes)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _get_tile(self, level: int, row: int, column: int) -> Pixels | None:
        grid = self.grids[level]
        index = row * grid.columns + column
        if grid.lengths[index] == 0 or grid.offsets[index] == 0:
            return None
        tile = self._tiles.get((level, index))
        if tile is None:
            try:
                tile = grid.clip_tile(self._decode_tile(grid, index), row, column)
            except Exception as error:  # codecs raise anything
                raise SlideError(
                    f"{self.path}: tile {column}, {row} of level {level} cannot be decoded "
                    f"({error})"
                ) from error
            self._tiles.put((level, index), tile)
        return tile

    def _decode_tile(self, grid: _TileGrid, index: int) -> Pixels:
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


class _TileCache:
    """A cache of decoded tiles that drops the least recently used."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self._free_bytes = max_bytes
        self._tiles: OrderedDict[tuple[int, int], Pixels] = OrderedDict()

    def get(self, key: tuple[int, int]) -> Pixels | None:
        if key in self._tiles:
            self._tiles.move_to_end(key)
        return self._tiles.get(key)

    def put(self, key: tuple[int, int], tile: Pixels) -> None:
        if tile.nbytes > self._max_bytes:
            return
        self._tiles[key] = tile
        self._free_bytes -= tile.nbytes
        while self._free_bytes < 0:
            self._free_bytes += self._tiles.popitem(last=False)[1].nbytes


class _TileGrid:
    """The tiles of one level, with their positions in the file."""

    def __init__(self, page: Any, first: Any) -> None:
        width, height = int(page.imagewidth), int(page.imagelength)
        downsample = (first.imagewidth / width + first.imagelength / height) / 2
        self.page, self.level = page, Level(width, height, downsample)
        self.tile_width, self.tile_height = int(page.tilewidth), int(page.tilelength)
        self.columns, self.rows = -(-width // self.tile_width), -(-height // self.tile_height)
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


def _find_span(start: int, length: int, tile: int, count: int) -> range:
    return range(max(start // tile, 0), min(-(-(start + length) // tile), count))


# Opening ---------------------------------------------------------------------------------------


def open_slide(path: Path) -> Slide:
    """Open a tiled TIFF; the error says why OpenSlide should read it."""
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
    except (SlideError, MissingExtraError):  # not installed, or it cannot open this file
        return
    with reference:
        difference = _find_disagreement(slide, reference)
    if difference:
        raise SlideError(f"{slide.path}: the fast reader's {difference} differ from OpenSlide's")


def _find_disagreement(slide: TiffSlide, reference: OpenSlideSlide) -> str | None:
    """Return what differs between the two readers; None if they agree.

    Levels and a resolution that only this reader finds (in OME-TIFF) do not count.
    """
    if any(grid.page.compression in _JPEG_2000 for grid in slide.grids):
        return "roundings of JPEG 2000"
    if slide.size != reference.size or not set(reference.levels) <= set(slide.levels):
        return "levels"
    own_mpp = math.nan if slide.mpp is None else slide.mpp
    if reference.mpp is not None and not math.isclose(reference.mpp, own_mpp, rel_tol=1e-4):
        return "microns per pixel"
    return None if _sample_agrees(slide, reference) else "pixels"


def _sample_agrees(slide: TiffSlide, reference: OpenSlideSlide) -> bool:
    for number, level in enumerate(reference.levels):
        own = slide.levels.index(level)
        grid = slide.grids[own]
        size = grid.tile_width, grid.tile_height
        for x, y in _choose_sample(grid):
            pixels = slide.read(x, y, own, *size)
            if not np.array_equal(pixels, reference.read(x, y, number, *size)):
                return False
    return True


def _choose_sample(grid: _TileGrid) -> list[tuple[int, int]]:
    """Return level-0 corners of the tile with most bytes, which has most detail, and a random one.

    Only tiles at whole level-0 pixels are used: between them OpenSlide interpolates.
    """
    width, height = (side * grid.level.downsample for side in (grid.tile_width, grid.tile_height))
    columns, rows = _find_whole_steps(grid.columns, width), _find_whole_steps(grid.rows, height)
    tiles = (rows[:, None] * grid.columns + columns).ravel()
    random_tile = np.random.default_rng(0).choice(tiles)
    chosen = sorted({int(tiles[grid.lengths[tiles].argmax()]), int(random_tile)})
    return [
        (round(index % grid.columns * width), round(index // grid.columns * height))
        for index in chosen
        if grid.lengths[index]
    ]


def _find_whole_steps(count: int, step: float) -> npt.NDArray[np.int64]:
    positions = np.arange(count) * step
    return np.flatnonzero(np.abs(positions - np.round(positions)) < 1e-6)


def _open_tiff(path: Path) -> Any:
    try:
        import imagecodecs  # noqa: F401  (tifffile decodes with it)
        import tifffile
    except ImportError:
        raise MissingExtraError("slides", "reading slides") from None
    try:
        return tifffile.TiffFile(path)
    except Exception as error:  # a parser of damaged files raises anything
        raise SlideError(f"{path}: this is not a TIFF file ({error})") from error


@contextmanager
def _silence_tifffile() -> Iterator[None]:
    """Silence tifffile's log of minor problems; serious ones are raised."""
    logger = logging.getLogger("tifffile")
    logger.addFilter(_reject_log_record)
    try:
        yield
    finally:
        logger.removeFilter(_reject_log_record)


def _reject_log_record(_: logging.LogRecord) -> bool:
    return False


# Directory -------------------------------------------------------------------------------------


def _read_grids(path: Path, file: Any) -> list[_TileGrid]:
    """Return the levels of a slide, the finest first; an error says why they cannot be read."""
    first = file.pages.first
    vendor = next((name for name in _VENDORS if getattr(file, f"is_{name}")), None)
    if vendor or "MedScan" in str(first.software):
        raise SlideError(f"{path}: the TIFF dialect {vendor or 'Trestle'} needs OpenSlide")
    problem = _find_decode_problem(first)
    if problem:
        raise SlideError(f"{path}: {problem}")
    _check_last_page(path, file)
    grids = [_TileGrid(page, first) for page in _find_level_pages(file)]
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


def _find_decode_problem(page: Any) -> str | None:
    """Return why this reader cannot read a page; None if it can."""
    if not page.is_tiled:
        return "the TIFF is not tiled"
    if page.imagedepth != 1 or page.planarconfig != 1:
        return "the TIFF holds a volume or separate colour planes"
    samples = (page.samplesperpixel, page.photometric)
    if page.bitspersample != 8 or samples not in {(1, _GRAY), (3, _RGB), (3, _YCBCR)}:
        return f"the TIFF holds {page.samplesperpixel} x {page.bitspersample} bits per pixel"
    if page.compression not in _COMPRESSIONS:
        return f"the TIFF is compressed in a way this reader does not know ({page.compression})"
    if page.photometric == _YCBCR and page.compression != _JPEG:
        return "the TIFF holds YCbCr that is not JPEG"
    tile_area = page.tilewidth * page.tilelength
    if not 0 < tile_area <= _MAX_TILE_PIXELS or 0 in (page.imagewidth, page.imagelength):
        return f"the TIFF has tiles of {page.tilewidth} x {page.tilelength} pixels"
    return None


def _check_last_page(path: Path, file: Any) -> None:
    """Reject a broken chain of pages: tifffile would silently miss levels."""
    file.filehandle.seek(file.pages.next_page_offset)
    if any(file.filehandle.read(file.tiff.offsetsize)):
        raise SlideError(f"{path}: the TIFF's chain of pages is broken, copy the file again")


def _check_complete(path: Path, file: Any, grids: list[_TileGrid]) -> None:
    for number, grid in enumerate(grids):
        tiles = grid.columns * grid.rows
        if len(grid.offsets) != tiles or len(grid.lengths) != tiles:
            raise DamagedSlideError(
                f"{path}: the TIFF lists {len(grid.offsets):,} tiles of level {number}; expected "
                f"{tiles:,}, copy the file again"
            )
    ends = [(grid.offsets + grid.lengths)[grid.lengths > 0].max(initial=0) for grid in grids]
    end, size = int(max(ends)), file.filehandle.size
    if end > size:
        raise DamagedSlideError(
            f"{path}: the TIFF is cut off: its tiles extend to byte {end:,}, but the file has "
            f"{size:,}; copy it again"
        )


def _read_mpp(page: Any) -> MicronsPerPixel | None:
    """Return µm per pixel of a page, by Aperio's or OME's description before the TIFF's tags."""
    description = page.description
    if description.startswith("Aperio"):
        return average_mpp([_search_number(r"\bMPP *= *([^|\s]+)", description)])
    if page.is_ome:
        sizes = [_read_ome_size(axis, description) for axis in "XY"]
        if None not in sizes:
            return average_mpp(sizes)
    unit = _MICRONS_PER_UNIT.get(page.resolutionunit)
    tags = [page.tags.get(f"{axis}Resolution") for axis in "XY"]
    counts = [tag.value if tag else (0, 1) for tag in tags]  # pixels per unit, as fractions
    sizes = [unit * below / above if unit and above else None for above, below in counts]
    return average_mpp(sizes)


def _read_ome_size(axis: str, xml: str) -> float | None:
    """Read a pixel size by a pattern, so that nothing in untrusted XML is expanded."""
    size = _search_number(rf'\bPhysicalSize{axis}="([^"]+)"', xml)
    unit = re.search(rf'\bPhysicalSize{axis}Unit="([^"]+)"', xml)
    factor = _OME_UNITS.get(unit[1].replace("μ", "µ") if unit else "µm")
    return size * factor if size and factor else None


def _search_number(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text)
    return parse_number(match[1]) if match else None


# JPEG ------------------------------------------------------------------------------------------


def _check_jpeg(data: bytes, grid: _TileGrid) -> None:
    """Reject headers that claim gigabytes, and cut-off tiles that would look like grey tissue."""
    if _END_OF_JPEG not in data[-16:]:  # some writers pad
        raise ValueError("its JPEG data are cut off")
    width, height = _read_jpeg_size(data)
    if width > grid.tile_width or height > grid.tile_height:
        raise ValueError(f"it claims {width} x {height} pixels")


def _read_jpeg_size(data: bytes) -> tuple[int, int]:
    offset = 2
    while data[offset] == 0xFF:
        marker = data[offset + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a start of frame
            height, width = struct.unpack_from(">HH", data, offset + 5)
            return width, height
        offset += 2 + int.from_bytes(data[offset + 2 : offset + 4], "big")
    raise ValueError("its JPEG header is damaged")
