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
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.errors import FormatError
from sacmil.formats import _files as files
from sacmil.formats import slideflow, torchmil, trident
from sacmil.formats._hints import Hints, make_no_coords_error
from sacmil.formats._spacing import describe_grid
from sacmil.formats.trident import Patches, read_patches, read_patches_file
from sacmil.units import Level0Px


def matches(path: Path) -> bool:
    """Whether this is a bare tensor, or an h5 with features and no attributes of TRIDENT."""
    if files.is_tensor_file(path):
        return not slideflow.matches(path) and not trident.matches(path)
    if torchmil.matches(path):
        return False
    found = files.read_header(path)
    return "features" in found.shapes and not trident.has_own_attributes(found.attributes)


def find_patches_file(path: Path, hints: Hints) -> Path | None:
    """Return the patches file of a feature file, if there is one."""
    return trident.find_patches_file(path, hints, _list_patch_folders(path))


def read(path: Path, hints: Hints) -> Bag:
    """Read features; coordinates and patch size come from the file, its patches file or hints."""
    features, own = _read_file(path)
    patches = _resolve_patches(path, features, own, hints)
    patch_size = patches.patch_size or hints.patch_size
    if patch_size is None:
        content = files.describe_contents(path) if files.is_hdf5(path) else "a tensor"
        raise FormatError(
            f"{path}: found {content} in CLAM's layout, but no tile size"
            f"{describe_grid(patches.coords)}; give `patch_size` in level-0 pixels, or the "
            "patches file or folder by `coords`"
        )
    return Bag(path.stem, features, patches.coords, Level0Px(patch_size), tile_px=patches.tile_px)


def _list_patch_folders(path: Path) -> list[Path]:
    above = path.parent.parent
    return [above / "patches", above.parent / "patches", above.parent / "RESULTS" / "patches"]


def _read_file(path: Path) -> tuple[npt.NDArray[Any], Patches | None]:
    if path.suffix in files.TENSOR_SUFFIXES:
        return files.load_features(path), None
    with files.open_file(path) as file:
        features = files.read_dataset(file, path, "features")
        return features, read_patches(file, path) if files.has_dataset(file, "coords") else None


def _resolve_patches(
    path: Path, features: npt.NDArray[Any], own: Patches | None, hints: Hints
) -> Patches:
    beside = find_patches_file(path, hints) or (None if own else _find_h5_twin(path))
    if beside is None:
        if own is None:
            tried = ", ".join(str(each / f"{path.stem}.h5") for each in _list_patch_folders(path))
            raise make_no_coords_error(path, f"none of {tried} exists")
        return own
    patches = read_patches_file(beside, path, features if own is None else None)
    if own is not None and not np.array_equal(own.coords, patches.coords):
        raise FormatError(
            f"{path}: its coordinates ({len(own.coords)} rows) differ from those of {beside} "
            f"({len(patches.coords)} rows); expected the file its tiles were cut with, give it by "
            "`coords`"
        )
    return patches if patches.patch_size or own is None else own


def _find_h5_twin(path: Path) -> Path | None:
    """Return the h5 that CLAM writes beside every pt, with the same rows."""
    twin = path.parent.parent / "h5_files" / f"{path.stem}.h5"
    return twin if path.suffix in files.TENSOR_SUFFIXES and twin.is_file() else None
