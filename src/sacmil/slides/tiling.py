"""Lays tiles: a regular grid over the slide, of which tiles with enough tissue are kept.

The grid begins at the upper left corner of level 0. So tiles coincide with the file's own tiles
if their side is a multiple of those. Column i begins at ``round(i * stride)``: positions are whole
pixels and never drift, even if the stride is not whole.

Tiles are stored in an HDF5 file that TRIDENT reads as a patches file, with more attributes:

==================  ===========================================================================
``coords``          (N, 2) int64, level-0 pixels, upper left corners
------------------  ---------------------------------------------------------------------------
on it, TRIDENT      patch_size (pixels of the tile), patch_size_level0, level0_magnification,
                    target_magnification, overlap, name, savetodir, level0_width, level0_height
on it, ours         mpp_level0, mpp (both "None" for tiles counted in pixels), side_level0,
                    stride_level0, min_tissue, mask_hash
on the file         layout = "sacmil tiles", schema_version, sacmil_version
==================  ===========================================================================

No times are stored: equal content gives equal bytes.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from sacmil._version import __version__
from sacmil.arguments import is_integer
from sacmil.atomic import atomic_write
from sacmil.errors import NoTissueError, OptionError, SlideError
from sacmil.hdf5 import UNKNOWN, make_hdf5, make_trident_attributes
from sacmil.slides.tissue import Tissue
from sacmil.units import Level0Px, MicronsPerPixel, TilePx

LAYOUT = "sacmil tiles"
SCHEMA_VERSION = 1
_MAX_TILES = 20_000_000
_DEFAULT_TILE_UM = 128.0  # 256 pixels of 0.5 µm
_CHUNK_ROWS = 1024  # rows of tiles processed at a time, to bound the memory
_SHARE_TOLERANCE = 1e-9  # shares are sums of floats: exactly a quarter must count as a quarter


@dataclass(frozen=True, kw_only=True)
class TileSpec:
    """Resolution, size and overlap of tiles, and the tissue they need."""

    mpp: float | None = 0.5
    """Microns per pixel of a tile; None counts in level-0 pixels, for images without µm."""
    patch_size: int = 256
    """Side of a tile in pixels of that resolution."""
    overlap: int = 0
    """Pixels of that resolution that two neighbours share; less than the side."""
    min_tissue: float = 0.25
    """Share of a tile that must be tissue, 0 to 1; at 0 any tissue is enough."""

    def __post_init__(self) -> None:
        if self.mpp is not None and not (_is_number(self.mpp) and 0 < self.mpp < math.inf):
            self._reject("mpp", "microns per pixel above zero, such as 0.5")
        if not is_integer(self.patch_size) or self.patch_size < 1:
            self._reject("patch_size", "whole pixels above zero, such as 256")
        if not is_integer(self.overlap) or not 0 <= self.overlap < self.patch_size:
            self._reject(
                "overlap", f"whole pixels from 0 to below the patch size, {self.patch_size}"
            )
        if not _is_number(self.min_tissue) or not 0 <= self.min_tissue <= 1:
            self._reject("min_tissue", "a share from 0 to 1, such as 0.25")

    def _reject(self, name: str, expected: str) -> None:
        raise OptionError(f"{name} is {getattr(self, name)!r}; expected {expected}")

    @property
    def tissue_mpp(self) -> MicronsPerPixel:
        """Resolution that tissue detection assumes if µm are unknown: a tile is 128 µm wide."""
        return MicronsPerPixel(_DEFAULT_TILE_UM / self.patch_size)

    def side(self, slide_mpp: MicronsPerPixel | None) -> Level0Px:
        """Return a tile's side on a slide of that resolution.

        >>> TileSpec(mpp=0.5, patch_size=256).side(MicronsPerPixel(0.25))
        512.0
        """
        return self._to_level0_px(self.patch_size, slide_mpp)

    def stride(self, slide_mpp: MicronsPerPixel | None) -> Level0Px:
        """Return the distance from one tile to the next on a slide of that resolution."""
        return self._to_level0_px(self.patch_size - self.overlap, slide_mpp)

    def _to_level0_px(self, pixels: int, slide_mpp: MicronsPerPixel | None) -> Level0Px:
        if self.mpp is None:
            return Level0Px(float(pixels))
        assert slide_mpp is not None
        # without the error of the division: 0.5 / 0.1 * 256 should be 1280
        return Level0Px(round(pixels * self.mpp / slide_mpp, 6))


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


@dataclass(frozen=True, eq=False)
class Tiles:
    """The tiles of one slide."""

    coords: npt.NDArray[np.int64]
    """(N, 2), level-0 pixels, x then y, upper left corners; row by row from the top."""
    side: Level0Px
    """Side of a tile; need not be whole."""
    stride: Level0Px
    """Distance from one tile to the next; need not be whole."""
    tile_px: TilePx
    """Side of a tile in pixels of the requested resolution."""

    def __len__(self) -> int:
        return len(self.coords)


def lay_tiles(tissue: Tissue, slide_mpp: MicronsPerPixel | None, spec: TileSpec) -> Tiles:
    """Return the tiles that are entirely on the slide and have enough tissue.

    Args:
        tissue: the tissue of the slide.
        slide_mpp: microns per level-0 pixel; None if tiles are counted in pixels.
        spec: resolution, size, overlap and least tissue of tiles.
    """
    side, stride = spec.side(slide_mpp), spec.stride(slide_mpp)
    left, top = (_find_starts(length, side, stride) for length in tissue.slide_size)
    _check_grid(tissue, len(left), len(top), side, stride)
    bands = np.array_split(top, math.ceil(len(top) / _CHUNK_ROWS))
    shares = np.concatenate([_compute_tissue_shares(tissue, left, band, side) for band in bands])
    enough = shares >= max(spec.min_tissue - _SHARE_TOLERANCE, _SHARE_TOLERANCE)
    if not enough.any():
        raise NoTissueError(
            f"none of {enough.size} tiles has {spec.min_tissue:.0%} tissue, the most is "
            f"{shares.max():.0%}; give a smaller `min_tissue` or `patch_size`, or enlarge the "
            "outline in the slide's GeoJSON"
        )
    row, column = np.nonzero(enough)
    coords = np.stack([left[column], top[row]], axis=1)
    return Tiles(coords, side, stride, TilePx(spec.patch_size))


def _find_starts(length: int, side: float, stride: float) -> npt.NDArray[np.int64]:
    """Return where tiles begin along one axis, without those that would exceed the slide."""
    if side > length:
        return np.empty(0, np.int64)
    count = min(int((length - side) / stride) + 2, _MAX_TILES)
    starts = np.rint(np.arange(count) * stride).astype(np.int64)
    return np.asarray(starts[starts + side <= length])


def _check_grid(tissue: Tissue, columns: int, rows: int, side: float, stride: float) -> None:
    width, height = tissue.slide_size
    if columns == 0 or rows == 0:
        raise SlideError(
            f"a tile covers {side:g} x {side:g} level-0 pixels, but the slide has only {width} x "
            f"{height}; cut smaller tiles, or leave this one out"
        )
    if stride < 1 or columns * rows > _MAX_TILES:
        raise OptionError(
            f"tiles {stride:g} level-0 pixels apart would be {columns * rows:,} on this slide of "
            f"{width} x {height}; give a smaller `overlap`"
        )


def _compute_tissue_shares(
    tissue: Tissue, left: npt.NDArray[np.int64], top: npt.NDArray[np.int64], side: float
) -> npt.NDArray[np.float64]:
    """Return the share of tissue of each tile, (rows, columns).

    The area above and left of a point is linear along each axis within a pixel of the mask. So
    interpolating the summed mask gives areas without rounding.
    """
    summed = np.pad(tissue.mask.cumsum(axis=0, dtype=np.int32), ((1, 0), (0, 0)))
    down = _sum_spans(summed, top / tissue.downsample, (top + side) / tissue.downsample)
    across = np.pad(down.cumsum(axis=1), ((0, 0), (1, 0))).T
    area = _sum_spans(across, left / tissue.downsample, (left + side) / tissue.downsample)
    return np.asarray(area.T / (side / tissue.downsample) ** 2)


def _sum_spans(
    summed: npt.NDArray[Any], starts: npt.NDArray[np.floating], ends: npt.NDArray[np.floating]
) -> npt.NDArray[np.float64]:
    """Return the sums of rows from fractional starts to ends, of an array of sums."""
    return _interpolate_rows(summed, ends) - _interpolate_rows(summed, starts)


def _interpolate_rows(
    summed: npt.NDArray[Any], positions: npt.NDArray[np.floating]
) -> npt.NDArray[np.float64]:
    """Return rows of an array at fractional positions, by interpolation."""
    last = len(summed) - 1
    positions = np.clip(positions, 0, last)
    before = np.minimum(positions.astype(np.int64), last - 1)
    weight = (positions - before)[:, None]
    return np.asarray(summed[before] * (1 - weight) + summed[before + 1] * weight)


# Files -----------------------------------------------------------------------------------------


def write_tiles(
    path: str | Path,
    slide_id: str,
    tiles: Tiles,
    tissue: Tissue,
    slide_mpp: MicronsPerPixel | None,
    spec: TileSpec,
) -> None:
    """Write the tiles and what they depend on; a file with the same content is left as it is.

    Args:
        path: of the file, which appears only when it is complete.
        slide_id: name of the slide.
        tiles: as ``lay_tiles`` returns them for the other arguments.
        tissue: the tissue of the slide.
        slide_mpp: microns per level-0 pixel; None if tiles are counted in pixels.
        spec: resolution, size, overlap and least tissue of tiles.
    """
    attributes = make_trident_attributes(
        slide_id, tiles.tile_px, tiles.side, tiles.stride, slide_mpp, tissue.slide_size
    ) | {
        "mpp_level0": UNKNOWN if slide_mpp is None else float(slide_mpp),
        "mpp": UNKNOWN if spec.mpp is None else float(spec.mpp),
        "side_level0": float(tiles.side),
        "stride_level0": float(tiles.stride),
        "min_tissue": float(spec.min_tissue),
        "mask_hash": tissue.hash,
    }

    def write(file: h5py.File) -> None:
        file.attrs.update(layout=LAYOUT, schema_version=SCHEMA_VERSION, sacmil_version=__version__)
        coords = file.create_dataset("coords", data=tiles.coords, track_times=False)
        coords.attrs.update(attributes)

    content, file = make_hdf5(write), Path(path)
    if not file.is_file() or file.read_bytes() != content:
        with atomic_write(file) as partial:
            partial.write_bytes(content)
