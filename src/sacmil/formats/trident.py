"""TRIDENT's layout: one HDF5 file with features, coordinates and the settings of the tiles.

``features_<encoder>/<slide>.h5`` (older: ``patch_features_<encoder>``) holds ``features`` (N, D)
and ``coords`` (N, 2), level-0 pixels, whose attributes give patch_size (pixels of the tile),
patch_size_level0, overlap, level0_width, level0_height; the text "None" means unknown. A ``.pt``
holds the features only; its coordinates are in ``../patches/<slide>_patches.h5``. µm per pixel is
not stored: give it by ``mpp``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy.typing as npt

from sacmil.bag import Bag, EncoderId
from sacmil.errors import FormatError
from sacmil.formats import _files as files
from sacmil.formats._hints import Hints, make_no_coords_error
from sacmil.units import Level0Px, TilePx

_FOLDER_PREFIXES = ("features_", "patch_features_")
_OWN_ATTRIBUTES = ("patch_size_level0", "target_magnification", "level0_magnification")
"""Attributes that only TRIDENT writes; CLAM writes patch_level instead."""


class Patches(NamedTuple):
    """Coordinates of tiles, and what the file stores about the tiles, as CLAM writes it too."""

    coords: npt.NDArray[Any]
    patch_size: Level0Px | None = None
    stride: Level0Px | None = None
    tile_px: TilePx | None = None
    slide_size: tuple[int, int] | None = None


def matches(path: Path) -> bool:
    """Whether the coordinates have TRIDENT's attributes, or a tensor is in TRIDENT's folders."""
    if files.is_tensor_file(path):
        return path.parent.name.startswith(_FOLDER_PREFIXES) or _get_patches_path(path).is_file()
    found = files.read_header(path)
    return {"features", "coords"} <= found.shapes.keys() and has_own_attributes(found.attributes)


def read(path: Path, hints: Hints) -> Bag:
    """Read features, coordinates and the settings of the tiles."""
    encoder = _parse_encoder(path)
    if path.suffix in files.TENSOR_SUFFIXES:
        features = files.load_features(path)
        beside = find_patches_file(path, hints, [_get_patches_path(path).parent])
        if beside is None:
            raise make_no_coords_error(path, f"{_get_patches_path(path)} does not exist")
        patches = read_patches_file(beside, path, features)
    else:
        hints.reject_coords(path)
        with files.open_file(path) as file:
            features = files.read_dataset(file, path, "features")
            patches = read_patches(file, path)
            encoder = files.read_attribute(file["features"], "encoder") or encoder
    if features.ndim == 1:
        raise FormatError(
            f"{path}: holds one vector for the whole slide ({len(features)} numbers); expected the "
            "features of its tiles, take the file in features_<encoder>"
        )
    patch_size = patches.patch_size or hints.patch_size
    if patch_size is None:
        raise FormatError(
            f"{path}: patch_size_level0 is missing; expected it among the attributes of coords, "
            "give `patch_size` in level-0 pixels"
        )
    return Bag(
        path.stem,
        features,
        patches.coords,
        Level0Px(patch_size),
        stride=patches.stride,
        tile_px=patches.tile_px,
        slide_size=patches.slide_size,
        encoder=EncoderId(str(encoder)) if encoder else None,
    )


def _get_patches_path(path: Path) -> Path:
    return path.parent.parent / "patches" / f"{path.stem}_patches.h5"


def _parse_encoder(path: Path) -> str | None:
    prefix = next((p for p in _FOLDER_PREFIXES if path.parent.name.startswith(p)), None)
    return path.parent.name.removeprefix(prefix) or None if prefix else None


def has_own_attributes(found: Mapping[str, Any]) -> bool:
    """Whether these attributes of coordinates are TRIDENT's, not CLAM's."""
    return any(name in found for name in _OWN_ATTRIBUTES)


def find_patches_file(path: Path, hints: Hints, folders: Iterable[Path]) -> Path | None:
    """Return the coordinate file of a feature file: the given one, or the one in these folders."""
    names = (f"{path.stem}.h5", f"{path.stem}_patches.h5")
    beside = (folder / name for folder in folders for name in names)
    return hints.find_coords_file(names) or next((file for file in beside if file.is_file()), None)


def read_patches_file(beside: Path, path: Path, features: npt.NDArray[Any] | None) -> Patches:
    """Read a coordinate file; without coordinates of their own, features need equally many rows."""
    with files.open_file(beside) as file:
        patches = read_patches(file, beside)
    if features is not None and features.ndim == 2 and len(features) != len(patches.coords):
        raise FormatError(
            f"{path}: has {len(features)} feature rows, {beside} has {len(patches.coords)} "
            "coordinates; expected equal numbers, they belong to different runs"
        )
    return patches


def read_patches(file: h5py.File, path: Path) -> Patches:
    """Read coordinates with their attributes, in level-0 pixels."""
    coords = files.read_dataset(file, path, "coords")
    found = files.read_attributes(file["coords"])
    if coords.ndim == 0:
        raise FormatError(
            f"{path}: coords is a single number; expected (N, 2), cut the tiles again"
        )
    try:
        tile_px = TilePx(int(found["patch_size"])) if "patch_size" in found else None
        if has_own_attributes(found):
            return _parse_attributes(coords, found, tile_px)
        return Patches(coords, _parse_clam_patch_size(found), tile_px=tile_px)
    except (TypeError, ValueError, IndexError, OverflowError, ZeroDivisionError) as error:
        raise FormatError(
            f"{path}: an attribute of coords is of the wrong kind ({error}); expected numbers, "
            "cut the tiles again"
        ) from error


def _parse_attributes(
    coords: npt.NDArray[Any], found: Mapping[str, Any], tile_px: TilePx | None
) -> Patches:
    patch_size = found.get("patch_size_level0") or _parse_magnifications(found)
    overlap = found.get("overlap")  # in pixels of the tile
    stride = None
    if overlap is not None and patch_size and tile_px:
        stride = Level0Px(patch_size - overlap * patch_size / tile_px)
    width, height = found.get("level0_width"), found.get("level0_height")
    slide_size = None if width is None or height is None else (int(width), int(height))
    side = Level0Px(float(patch_size)) if patch_size else None
    return Patches(coords, side, stride, tile_px, slide_size)


def _parse_magnifications(found: Mapping[str, Any]) -> float | None:
    names = ("patch_size", "level0_magnification", "target_magnification")
    if any(found.get(name) is None for name in names):
        return None
    patch_size, level0, target = (float(found[name]) for name in names)
    return patch_size * level0 // target


def _parse_clam_patch_size(found: Mapping[str, Any]) -> Level0Px | None:
    """Convert CLAM's patch_size from pixels of patch_level; None if the level is unclear."""
    if "patch_size" not in found or found.get("custom_downsample", 1) != 1:
        return None
    downsample = found.get("downsample")
    if downsample is None:
        return Level0Px(float(found["patch_size"])) if found.get("patch_level") == 0 else None
    factor = downsample[0] if isinstance(downsample, list) else downsample
    # CLAM itself truncates the factor
    return Level0Px(float(found["patch_size"] * int(factor)))
