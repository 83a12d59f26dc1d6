"""The coordinate files of CLAM and TRIDENT, and their attributes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.errors import FormatError
from sacmil.formats._hdf5 import open_file, read_attributes, read_dataset
from sacmil.formats._hints import Hints

TRIDENT_ATTRIBUTES = ("patch_size_level0", "target_magnification", "level0_magnification")
"""Attributes that only TRIDENT writes; CLAM writes patch_level instead."""


class Patches(NamedTuple):
    """Coordinates of tiles, and what the file stores about the tiles."""

    coords: npt.NDArray[Any]
    patch_size: float | None = None
    """In level-0 pixels."""
    stride: float | None = None
    tile_px: int | None = None
    slide_size: tuple[int, int] | None = None


def find_patches(path: Path, hints: Hints, folders: Iterable[Path]) -> Path | None:
    """Return the coordinate file of a feature file: the given one, or the one in these folders."""
    names = (f"{path.stem}.h5", f"{path.stem}_patches.h5")
    beside = (folder / name for folder in folders for name in names)
    return hints.find_coords_file(names) or next((file for file in beside if file.is_file()), None)


def read_patches(path: Path) -> Patches:
    """Read a coordinate file."""
    with open_file(path) as file:
        coords = read_dataset(file, path, "coords")
        found = read_attributes(file["coords"])
    return parse_patches(path, coords, found)


def parse_patches(path: Path, coords: npt.NDArray[Any], found: Mapping[str, Any]) -> Patches:
    """Combine coordinates with their attributes, in level-0 pixels."""
    if coords.ndim == 0:
        raise FormatError(
            f"{path}: coords is a single number; expected (N, 2), cut the tiles again"
        )
    try:
        if any(name in found for name in TRIDENT_ATTRIBUTES):
            return _parse_trident(coords, found)
        return Patches(
            coords, _patch_size_from_clam(found), tile_px=_to_int(found.get("patch_size"))
        )
    except (TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
        raise FormatError(
            f"{path}: an attribute of coords is of the wrong kind ({error}); expected numbers, "
            "cut the tiles again"
        ) from error


def drop_batch_axis(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert (1, N, D), which some tools write, to (N, D)."""
    return values[0] if values.ndim == 3 and len(values) == 1 else values


def check_same_coords(
    path: Path, coords: npt.NDArray[Any], patches: Path, others: npt.NDArray[Any]
) -> None:
    """Reject coordinates that differ from those of the encoded tiles."""
    if coords.shape != others.shape or not np.array_equal(coords, others):
        raise FormatError(
            f"{path}: its coordinates ({len(coords)} rows) differ from those of {patches} "
            f"({len(others)} rows); expected the file its tiles were cut with, give it by "
            "`coords`"
        )


def _parse_trident(coords: npt.NDArray[Any], found: Mapping[str, Any]) -> Patches:
    tile_px = _to_int(found.get("patch_size"))
    patch_size = found.get("patch_size_level0") or _patch_size_from_magnification(found)
    overlap = found.get("overlap")  # in pixels of the tile
    stride = None
    if overlap is not None and patch_size and tile_px:
        stride = patch_size - overlap * patch_size / tile_px
    width, height = _to_int(found.get("level0_width")), _to_int(found.get("level0_height"))
    slide_size = None if width is None or height is None else (width, height)
    return Patches(coords, patch_size and float(patch_size), stride, tile_px, slide_size)


def _patch_size_from_magnification(found: Mapping[str, Any]) -> float | None:
    names = ("patch_size", "level0_magnification", "target_magnification")
    if any(found.get(name) is None for name in names):
        return None
    patch_size, level0, target = (float(found[name]) for name in names)
    return patch_size * level0 // target


def _patch_size_from_clam(found: Mapping[str, Any]) -> float | None:
    """Convert CLAM's patch_size from pixels of patch_level; None if the level is unclear."""
    if "patch_size" not in found or found.get("custom_downsample", 1) != 1:
        return None
    downsample = found.get("downsample")
    if downsample is None:
        return float(found["patch_size"]) if found.get("patch_level") == 0 else None
    factor = downsample[0] if isinstance(downsample, list) else downsample
    return float(found["patch_size"] * int(factor))  # CLAM itself truncates the factor


def _to_int(value: Any) -> int | None:
    return None if value is None else int(value)
