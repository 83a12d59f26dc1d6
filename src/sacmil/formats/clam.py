"""CLAM's layout: feature files without tile sizes, which a separate patches file holds.

==========================  ===================================================================
``h5_files/<slide>.h5``     ``features`` (N, D), ``coords`` (N, 2) level-0 pixels; no attributes
``pt_files/<slide>.pt``     a tensor (N, D), rows as in the h5; no coordinates
``patches/<slide>.h5``      ``coords`` (N, 2) with attributes patch_size (pixels of patch_level),
                            patch_level, downsample; found in ``../patches``, ``../../patches``,
                            ``../../RESULTS/patches``, or given by ``coords``
==========================  ===================================================================

Without a patches file, ``patch_size`` is needed for an h5; a pt cannot be read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.errors import FormatError
from sacmil.formats import _torch_file, slideflow, torchmil, trident
from sacmil.formats._hdf5 import (
    describe_contents,
    has_dataset,
    is_hdf5,
    open_file,
    read_attributes,
    read_dataset,
)
from sacmil.formats._hints import Hints
from sacmil.formats._patches import (
    TRIDENT_ATTRIBUTES,
    Patches,
    check_same_coords,
    drop_batch_axis,
    find_patches,
    parse_patches,
    read_patches,
)
from sacmil.formats._spacing import find_grid
from sacmil.units import Level0Px, TilePx


class _ClamFile(NamedTuple):
    features: npt.NDArray[Any]
    patches: Patches | None


def matches(path: Path) -> bool:
    """Whether this is a bare tensor, or an h5 with features and no attributes of TRIDENT."""
    if path.suffix in _torch_file.SUFFIXES and not is_hdf5(path):
        return not slideflow.matches(path) and not trident.matches(path)
    if not is_hdf5(path) or torchmil.matches(path):
        return False
    with open_file(path) as file:
        if not has_dataset(file, "features"):
            return False
        found = read_attributes(file["coords"]) if has_dataset(file, "coords") else {}
    return not any(name in found for name in TRIDENT_ATTRIBUTES)


def find_patches_file(path: Path, hints: Hints) -> Path | None:
    """Return the patches file of a feature file, if there is one."""
    return find_patches(path, hints, _list_patch_folders(path))


def read(path: Path, hints: Hints) -> Bag:
    """Read features; coordinates and patch size come from the file, its patches file or hints."""
    content = _read_tensor(path) if path.suffix in _torch_file.SUFFIXES else _read_hdf5(path)
    patches = _resolve_patches(path, content, hints)
    patch_size = patches.patch_size or hints.patch_size
    if patch_size is None:
        raise _make_no_patch_size_error(path, patches)
    return Bag(
        path.stem,
        content.features,
        patches.coords,
        Level0Px(patch_size),
        tile_px=None if patches.tile_px is None else TilePx(patches.tile_px),
    )


def _list_patch_folders(path: Path) -> list[Path]:
    above = path.parent.parent
    return [above / "patches", above.parent / "patches", above.parent / "RESULTS" / "patches"]


def _read_tensor(path: Path) -> _ClamFile:
    return _ClamFile(drop_batch_axis(_torch_file.load_features(path)), None)


def _read_hdf5(path: Path) -> _ClamFile:
    with open_file(path) as file:
        features = drop_batch_axis(read_dataset(file, path, "features"))
        if not has_dataset(file, "coords"):
            return _ClamFile(features, None)
        coords = drop_batch_axis(read_dataset(file, path, "coords"))
        found = read_attributes(file["coords"])
    return _ClamFile(features, parse_patches(path, coords, found))


def _resolve_patches(path: Path, content: _ClamFile, hints: Hints) -> Patches:
    own = content.patches
    beside = find_patches_file(path, hints)
    if beside is None:
        beside = _find_h5_twin(path) if own is None else None
    if beside is None:
        if own is None:
            raise _make_no_coords_error(path)
        return own
    patches = read_patches(beside)
    if own is not None:
        check_same_coords(path, own.coords, beside, patches.coords)
    elif content.features.ndim and len(content.features) != len(patches.coords):
        raise FormatError(
            f"{path}: has {len(content.features)} feature rows, {beside} has "
            f"{len(patches.coords)} coordinates; expected equal numbers, they belong to different "
            "runs"
        )
    return patches if patches.patch_size or own is None else own


def _find_h5_twin(path: Path) -> Path | None:
    """Return the h5 that CLAM writes beside every pt, with the same rows."""
    twin = path.parent.parent / "h5_files" / f"{path.stem}.h5"
    return twin if path.suffix in _torch_file.SUFFIXES and twin.is_file() else None


def _make_no_coords_error(path: Path) -> FormatError:
    tried = ", ".join(str(folder / f"{path.stem}.h5") for folder in _list_patch_folders(path))
    return FormatError(
        f"{path}: holds features without coordinates, and none of {tried} exists; give the "
        "file or folder of coordinates by `coords`"
    )


def _make_no_patch_size_error(path: Path, patches: Patches) -> FormatError:
    grid = find_grid(patches.coords)
    spacing = f"; its tiles are {grid.spacing:g} apart" if grid else ""
    content = describe_contents(path) if is_hdf5(path) else "a tensor"
    return FormatError(
        f"{path}: found {content} in CLAM's layout, but no tile size{spacing}; "
        "give `patch_size` in level-0 pixels, or the "
        "patches file or folder by `coords`"
    )
