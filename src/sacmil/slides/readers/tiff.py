"""The fast reader of tiled TIFF and SVS pyramids: decodes the file's own tiles directly.

If OpenSlide can open the file too, this reader is used only if both agree on levels, resolution
and the sample of pixels in `_sample_agrees`. OpenSlide reads vendor formats with overlapping tiles
or levels described elsewhere (NDPI, Philips, Leica, Ventana). It also reads JPEG 2000, where
decoders round differently once in a million pixels.
"""

from __future__ import annotations

import logging
import math
import struct
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.errors import MissingExtraError, SlideError
from sacmil.slides.readers._base import Pixels, Slide
from sacmil.slides.readers._tiff_pages import JPEG, JPEG_2000, TiffGrid, read_grids, read_mpp
from sacmil.slides.readers.openslide import OpenSlideSlide

PRIORITY = 10
CACHE_BYTES = 96 * 2**20
"""Size of the tile cache: more than a row of 256-pixel tiles of a slide 100,000 pixels wide."""

_WHITE = 255
_END_OF_JPEG = b"\xff\xd9"


class TiffSlide(Slide):
    """A tiled TIFF; unlike ``open_slide`` it is not compared with OpenSlide."""

    reader = "tiff"

    def __init__(self, path: Path, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.path = path
        self._tiles = _TileCache(cache_bytes)
        with _silence_tifffile():
            self._file = _open_tiff(path)
            try:
                self._grids = read_grids(path, self._file)
                self.mpp = read_mpp(self._file.pages.first)
            except Exception as error:  # a parser of damaged files raises anything
                self.close()
                if isinstance(error, SlideError):
                    raise
                raise SlideError(f"{path}: the TIFF's directory is damaged ({error!r})") from error
        self.levels = tuple(grid.level for grid in self._grids)

    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        """Read a region of a level; pixels outside the slide or not scanned are white."""
        grid = self._grids[level]
        left, top = (math.floor(at / grid.level.downsample + 0.5) for at in (x, y))
        region = np.full((height, width, 3), _WHITE, dtype=np.uint8)
        for row, column in grid.iter_tiles(left, top, width, height):
            tile = self._get_tile(level, row, column)
            if tile is not None:
                tile_top, tile_left = row * grid.tile_height, column * grid.tile_width
                _paste_tile(region, tile, left=tile_left - left, top=tile_top - top)
        return region

    def set_cache_size(self, max_bytes: int) -> None:
        """Keep at most ``max_bytes`` of decoded tiles for later reads."""
        self._tiles = _TileCache(max_bytes)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _get_tile(self, level: int, row: int, column: int) -> Pixels | None:
        grid = self._grids[level]
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

    def _decode_tile(self, grid: TiffGrid, index: int) -> Pixels:
        length = int(grid.lengths[index])
        self._file.filehandle.seek(int(grid.offsets[index]))
        data = self._file.filehandle.read(length)
        if len(data) < length:
            raise ValueError(f"it has {len(data):,} of {length:,} bytes")
        tables = {}
        if grid.page.compression == JPEG:
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
    if any(grid.page.compression in JPEG_2000 for grid in slide._grids):
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
        for x, y in _choose_sample(grid):
            if not np.array_equal(
                slide.read(x, y, own, *size), reference.read(x, y, number, *size)
            ):
                return False
    return True


def _choose_sample(grid: TiffGrid) -> list[tuple[int, int]]:
    """Return level-0 corners of the tile with most bytes, which has most detail, and a random one.

    Only tiles at whole level-0 pixels are used: between them OpenSlide interpolates.
    """
    columns = _find_whole_steps(grid.columns, grid.tile_width * grid.level.downsample)
    rows = _find_whole_steps(grid.rows, grid.tile_height * grid.level.downsample)
    tiles = (rows[:, None] * grid.columns + columns).ravel()
    random_tile = np.random.default_rng(0).choice(tiles)
    chosen = sorted({int(tiles[grid.lengths[tiles].argmax()]), int(random_tile)})
    scale_x, scale_y = (
        side * grid.level.downsample for side in (grid.tile_width, grid.tile_height)
    )
    return [
        (round(index % grid.columns * scale_x), round(index // grid.columns * scale_y))
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


def _check_jpeg(data: bytes, grid: TiffGrid) -> None:
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


def _paste_tile(region: Pixels, tile: Pixels, *, left: int, top: int) -> None:
    height, width = tile.shape[:2]
    target = region[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    from_top, from_left = max(-top, 0), max(-left, 0)
    target[...] = tile[from_top:, from_left:][: target.shape[0], : target.shape[1]]
