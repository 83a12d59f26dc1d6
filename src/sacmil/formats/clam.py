"""CLAM's layout: features without a word about the tiles, which its patches file describes.

==========================  ===================================================================
``h5_files/<slide>.h5``     ``features`` (N, D), ``coords`` (N, 2) level-0 pixels; no attributes
``pt_files/<slide>.pt``     a tensor (N, D), rows as in the h5; no coordinates
``patches/<slide>.h5``      ``coords`` (N, 2) with attributes patch_size (pixels of patch_level),
                            patch_level, downsample; found in ``../patches``, ``../../patches``,
                            ``../../RESULTS/patches``, or where ``coords`` says
==========================  ===================================================================

Without a patches file, ``patch_size`` has to be given for an h5; a pt cannot be read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.errors import FormatError
from sacmil.formats import _torch_file, slideflow, torchmil, trident
from sacmil.formats._hdf5 import attributes, contents, dataset, has, is_hdf5, open_file
from sacmil.formats._hints import Hints
from sacmil.formats._patches import (
    TRIDENT_MARKS,
    Patches,
    described,
    find_patches,
    read_patches,
    same_rows,
    without_batch_axis,
)
from sacmil.formats._spacing import find_grid
from sacmil.units import Level0Px, TilePx


class _Content(NamedTuple):
    features: npt.NDArray[Any]
    patches: Patches | None


def matches(path: Path) -> bool:
    """Whether this is a bare tensor, or an h5 with features about whose tiles it says nothing."""
    if path.suffix in _torch_file.SUFFIXES and not is_hdf5(path):
        return not slideflow.matches(path) and not trident.matches(path)
    if not is_hdf5(path) or torchmil.matches(path):
        return False
    with open_file(path) as file:
        if not has(file, "features"):
            return False
        found = attributes(file["coords"]) if has(file, "coords") else {}
    return not any(mark in found for mark in TRIDENT_MARKS)


def patches_file(path: Path, hints: Hints) -> Path | None:
    """The patches file of a feature file, where there is one."""
    return find_patches(path, hints, _folders(path))


def read(path: Path, hints: Hints) -> Bag:
    """Read features; the tiles from the file itself, its patches file, or the hints."""
    content = _tensor(path) if path.suffix in _torch_file.SUFFIXES else _arrays(path)
    patches = _patches(path, content, hints)
    patch_size = patches.patch_size or hints.patch_size
    if patch_size is None:
        raise _no_patch_size(path, patches)
    return Bag(
        path.stem,
        content.features,
        patches.coords,
        Level0Px(patch_size),
        tile_px=None if patches.tile_px is None else TilePx(patches.tile_px),
    )


def _folders(path: Path) -> list[Path]:
    above = path.parent.parent
    return [above / "patches", above.parent / "patches", above.parent / "RESULTS" / "patches"]


def _tensor(path: Path) -> _Content:
    return _Content(without_batch_axis(_torch_file.load_features(path)), None)


def _arrays(path: Path) -> _Content:
    with open_file(path) as file:
        features = without_batch_axis(dataset(file, path, "features"))
        if not has(file, "coords"):
            return _Content(features, None)
        coords = without_batch_axis(dataset(file, path, "coords"))
        found = attributes(file["coords"])
    return _Content(features, described(path, coords, found))


def _patches(path: Path, content: _Content, hints: Hints) -> Patches:
    own = content.patches
    beside = patches_file(path, hints)
    if beside is None:
        beside = _twin(path) if own is None else None
    if beside is None:
        if own is None:
            raise _no_coords(path)
        return own
    patches = read_patches(beside)
    if own is not None:
        same_rows(path, own.coords, beside, patches.coords)
    elif content.features.ndim and len(content.features) != len(patches.coords):
        raise FormatError(
            f"{path}: has {len(content.features)} feature rows, {beside} has "
            f"{len(patches.coords)} coordinates; expected as many, they belong to different runs"
        )
    return patches if patches.patch_size or own is None else own


def _twin(path: Path) -> Path | None:
    """The h5 that CLAM writes beside every pt, row by row the same."""
    twin = path.parent.parent / "h5_files" / f"{path.stem}.h5"
    return twin if path.suffix in _torch_file.SUFFIXES and twin.is_file() else None


def _no_coords(path: Path) -> FormatError:
    places = ", ".join(str(folder / f"{path.stem}.h5") for folder in _folders(path))
    return FormatError(
        f"{path}: holds features without coordinates, and none of {places} is there; give the "
        "file or folder of coordinates by coords (`sacmil convert --coords`)"
    )


def _no_patch_size(path: Path, patches: Patches) -> FormatError:
    grid = find_grid(patches.coords)
    seen = f"; its tiles stand {grid.spacing:g} apart" if grid else ""
    what = contents(path) if is_hdf5(path) else "a tensor"
    return FormatError(
        f"{path}: found {what} as CLAM writes them, but nothing that says how large the tiles "
        f"are{seen}; give patch_size (`sacmil convert --patch-size`) in level-0 pixels, or the "
        "patches file or folder by coords (`sacmil convert --coords`)"
    )
