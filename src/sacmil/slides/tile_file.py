"""Stores tiles in an HDF5 file that TRIDENT reads as a patches file, with more attributes.

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

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sacmil._version import __version__
from sacmil.atomic import atomic_write
from sacmil.errors import FormatError, OptionError
from sacmil.hdf5 import open_hdf5
from sacmil.slides.tiling import Tiles, TileSpec
from sacmil.units import Level0Px, MicronsPerPixel, TilePx, nominal_magnification

LAYOUT = "sacmil tiles"
SCHEMA_VERSION = 1
_UNKNOWN = "None"
_HDF5_VERSIONS = ("v110", "v110")  # from 1.10 on, HDF5 has checksums of its metadata
_FIX_HINT = "delete the file and run sacmil extract again"


@dataclass(frozen=True, eq=False)
class SlideTiles:
    """The tiles of a slide and everything they depend on."""

    slide_id: str
    tiles: Tiles
    spec: TileSpec
    slide_mpp: MicronsPerPixel | None
    """Microns per level-0 pixel; None if tiles are counted in pixels."""
    slide_size: tuple[int, int]
    """Width and height of level 0."""
    mask_hash: str
    """Hash of the tissue mask; with another mask the tiles are out of date."""


def write_tiles(path: str | Path, slide_tiles: SlideTiles) -> None:
    """Write the tiles; the file appears only when it is complete."""
    with atomic_write(path) as partial:
        partial.write_bytes(_to_hdf5_bytes(slide_tiles))


def read_tiles(path: str | Path) -> SlideTiles:
    """Read a file that ``write_tiles`` wrote; any other file is a FormatError."""
    try:
        with open_hdf5(path) as file:
            _check_layout(path, file)
            coords, attributes = file["coords"][()], dict(file["coords"].attrs)
        return _parse_slide_tiles(path, coords, attributes)
    except FormatError:
        raise
    except OptionError as error:
        raise FormatError(f"{path}: {error}; {_FIX_HINT}") from error
    # for damaged files h5py raises any of these
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, MemoryError) as error:
        detail = " ".join(str(error).split()) or type(error).__name__
        raise FormatError(f"{path}: cannot be read as tiles ({detail}); {_FIX_HINT}") from error


def _to_hdf5_bytes(slide_tiles: SlideTiles) -> bytes:
    """Return the file's bytes, made in memory: on a full disk HDF5 would crash the process."""
    in_memory = {"driver": "core", "backing_store": False, "libver": _HDF5_VERSIONS}
    with h5py.File("tiles", "w", **in_memory) as file:
        file.attrs.update(layout=LAYOUT, schema_version=SCHEMA_VERSION, sacmil_version=__version__)
        coords = file.create_dataset("coords", data=slide_tiles.tiles.coords, track_times=False)
        coords.attrs.update(_trident_attributes(slide_tiles) | _sacmil_attributes(slide_tiles))
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def _trident_attributes(slide_tiles: SlideTiles) -> dict[str, Any]:
    side, mpp = slide_tiles.tiles.side, slide_tiles.slide_mpp
    magnification = None if mpp is None else nominal_magnification(mpp)
    shrink = slide_tiles.tiles.tile_px / side
    return {
        "name": slide_tiles.slide_id,
        "savetodir": _UNKNOWN,
        "patch_size": slide_tiles.tiles.tile_px,
        "patch_size_level0": _to_int_if_whole(side),
        "overlap": slide_tiles.spec.overlap,
        "level0_magnification": magnification or _UNKNOWN,
        "target_magnification": _to_int_if_whole(magnification * shrink)
        if magnification
        else _UNKNOWN,
        "level0_width": slide_tiles.slide_size[0],
        "level0_height": slide_tiles.slide_size[1],
    }


def _sacmil_attributes(slide_tiles: SlideTiles) -> dict[str, Any]:
    return {
        "mpp_level0": _UNKNOWN if slide_tiles.slide_mpp is None else float(slide_tiles.slide_mpp),
        "mpp": _UNKNOWN if slide_tiles.spec.mpp is None else float(slide_tiles.spec.mpp),
        "side_level0": float(slide_tiles.tiles.side),
        "stride_level0": float(slide_tiles.tiles.stride),
        "min_tissue": float(slide_tiles.spec.min_tissue),
        "mask_hash": slide_tiles.mask_hash,
    }


def _check_layout(path: str | Path, file: h5py.File) -> None:
    layout = file.attrs.get("layout")
    if not isinstance(layout, str) or layout != LAYOUT:
        raise FormatError(f"{path}: has layout {layout!r}; expected {LAYOUT!r}; {_FIX_HINT}")
    version = int(file.attrs.get("schema_version", 0))
    if not 1 <= version <= SCHEMA_VERSION:
        raise FormatError(
            f"{path}: has schema version {version}; this sacmil ({__version__}) reads up to "
            f"{SCHEMA_VERSION}, install a newer one: pip install -U sacmil"
        )


def _parse_slide_tiles(path: str | Path, coords: Any, attributes: dict[str, Any]) -> SlideTiles:
    tiles = Tiles(
        _check_coords(path, coords),
        Level0Px(float(attributes["side_level0"])),
        Level0Px(float(attributes["stride_level0"])),
        TilePx(int(attributes["patch_size"])),
    )
    spec = TileSpec(
        mpp=_parse_number(attributes["mpp"]),
        patch_size=int(attributes["patch_size"]),
        overlap=int(attributes["overlap"]),
        min_tissue=float(attributes["min_tissue"]),
    )
    mpp = _parse_number(attributes["mpp_level0"])
    slide_tiles = SlideTiles(
        str(attributes["name"]),
        tiles,
        spec,
        None if mpp is None else MicronsPerPixel(mpp),
        (int(attributes["level0_width"]), int(attributes["level0_height"])),
        str(attributes["mask_hash"]),
    )
    _check_consistent(path, slide_tiles)
    return slide_tiles


def _check_coords(path: str | Path, coords: Any) -> Any:
    if coords.dtype != np.int64 or coords.ndim != 2 or coords.shape[1] != 2 or not len(coords):
        raise FormatError(
            f"{path}: 'coords' are {coords.dtype} of shape {coords.shape}; expected int64 (N, 2); "
            f"{_FIX_HINT}"
        )
    return coords


def _check_consistent(path: str | Path, slide_tiles: SlideTiles) -> None:
    """Reject contradictory values: damage may leave a file readable."""
    tiles, mpp = slide_tiles.tiles, slide_tiles.slide_mpp
    is_mpp_valid = (mpp is None) == (slide_tiles.spec.mpp is None) and (
        mpp is None or 0 < mpp < float("inf")
    )
    is_consistent = is_mpp_valid and (tiles.side, tiles.stride) == (
        slide_tiles.spec.side(mpp),
        slide_tiles.spec.stride(mpp),
    )
    if not is_consistent:
        raise FormatError(
            f"{path}: tiles of {tiles.side:g} level-0 pixels every {tiles.stride:g} do not follow "
            f"from {slide_tiles.spec} on a slide of {mpp or 'unknown'} µm per pixel; {_FIX_HINT}"
        )
    if tiles.coords.min() < 0 or (tiles.coords + tiles.side > slide_tiles.slide_size).any():
        raise FormatError(
            f"{path}: a tile lies beyond the slide's {slide_tiles.slide_size[0]} x "
            f"{slide_tiles.slide_size[1]} pixels; {_FIX_HINT}"
        )


def _parse_number(value: Any) -> float | None:
    is_unknown = isinstance(value, str) and value == _UNKNOWN
    return None if is_unknown else float(value)


def _to_int_if_whole(value: float) -> int | float:
    return int(value) if float(value).is_integer() else float(value)
