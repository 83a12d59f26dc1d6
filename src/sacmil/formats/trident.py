"""TRIDENT's layout: one HDF5 file with features, coordinates and the settings of the tiles.

``features_<encoder>/<slide>.h5`` (older: ``patch_features_<encoder>``) holds ``features`` (N, D)
and ``coords`` (N, 2), level-0 pixels, whose attributes give patch_size (pixels of the tile),
patch_size_level0, overlap, level0_width, level0_height; the text "None" means unknown. A ``.pt``
holds the features only; its coordinates are in ``../patches/<slide>_patches.h5``. µm per pixel is
not stored: give it by ``mpp``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

from sacmil.bag import Bag, EncoderId
from sacmil.errors import FormatError
from sacmil.formats import _torch_file
from sacmil.formats._hdf5 import has_dataset, is_hdf5, open_file, read_attributes, read_dataset
from sacmil.formats._hints import Hints
from sacmil.formats._patches import (
    TRIDENT_ATTRIBUTES,
    Patches,
    drop_batch_axis,
    find_patches,
    parse_patches,
    read_patches,
)
from sacmil.units import Level0Px, TilePx

_FOLDER_PREFIXES = ("features_", "patch_features_")


def matches(path: Path) -> bool:
    """Whether the coordinates have TRIDENT's attributes, or a tensor is in TRIDENT's folders."""
    if path.suffix in _torch_file.SUFFIXES and not is_hdf5(path):
        return path.parent.name.startswith(_FOLDER_PREFIXES) or _get_patches_path(path).is_file()
    if not is_hdf5(path):
        return False
    with open_file(path) as file:
        if not (has_dataset(file, "features") and has_dataset(file, "coords")):
            return False
        found = read_attributes(file["coords"])
    return any(name in found for name in TRIDENT_ATTRIBUTES)


def read(path: Path, hints: Hints) -> Bag:
    """Read features, coordinates and the settings of the tiles."""
    if path.suffix in _torch_file.SUFFIXES:
        features, patches, encoder = _read_tensor(path, hints)
    else:
        hints.reject_coords(path)
        features, patches, encoder = _read_hdf5(path)
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
        stride=None if patches.stride is None else Level0Px(patches.stride),
        tile_px=None if patches.tile_px is None else TilePx(patches.tile_px),
        slide_size=patches.slide_size,
        encoder=EncoderId(encoder) if encoder else None,
    )


def _read_hdf5(path: Path) -> tuple[npt.NDArray[Any], Patches, str | None]:
    with open_file(path) as file:
        features = drop_batch_axis(read_dataset(file, path, "features"))
        coords = drop_batch_axis(read_dataset(file, path, "coords"))
        encoder = read_attributes(file["features"]).get("encoder") or _parse_encoder(path)
        found = read_attributes(file["coords"])
    return features, parse_patches(path, coords, found), encoder and str(encoder)


def _read_tensor(path: Path, hints: Hints) -> tuple[npt.NDArray[Any], Patches, str | None]:
    features = drop_batch_axis(_torch_file.load_features(path))
    beside = find_patches(path, hints, [_get_patches_path(path).parent])
    if beside is None:
        raise FormatError(
            f"{path}: holds features without coordinates, and {_get_patches_path(path)} does not "
            "exist; give the file or folder of coordinates by `coords`"
        )
    patches = read_patches(beside)
    if features.ndim == 2 and len(features) != len(patches.coords):
        raise FormatError(
            f"{path}: has {len(features)} feature rows, {beside} has {len(patches.coords)} "
            "coordinates; expected equal numbers, they belong to different runs"
        )
    return features, patches, _parse_encoder(path)


def _get_patches_path(path: Path) -> Path:
    return path.parent.parent / "patches" / f"{path.stem}_patches.h5"


def _parse_encoder(path: Path) -> str | None:
    prefix = next((p for p in _FOLDER_PREFIXES if path.parent.name.startswith(p)), None)
    return path.parent.name.removeprefix(prefix) or None if prefix else None
