"""torchmil's layout: parallel folders with a file per slide in each.

::

    features/<slide>.npy        (N, D); published sets: features/features_<encoder>/<slide>.npy
    coords/<slide>.npy          (N, 2), level-0 pixels
    patch_labels/<slide>.npy    (N,) truth per instance as in Bag.labels, optional;
                                also called inst_labels
    labels/<slide>.npy          truth of the slide; not part of a bag

A path to the features finds the others; .h5 files with one array of the folder's name are read
too. The patch size is that of the folder above where it is called ``patches_<pixels>``, else it
has to be given.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.errors import FormatError
from sacmil.formats import _numpy_file
from sacmil.formats._hdf5 import dataset, has, is_hdf5, open_file
from sacmil.formats._hints import Hints
from sacmil.formats._spacing import find_grid
from sacmil.units import Level0Px

_LABELS = ("patch_labels", "inst_labels")
_SIGNATURE = b"\x93NUMPY"


def matches(path: Path) -> bool:
    """Whether it is an array, or an h5 of features whose coordinates lie in the folder beside."""
    if is_hdf5(path):
        return _is_features_only(path) and _beside(path, "coords") is not None
    with path.open("rb") as file:
        return file.read(len(_SIGNATURE)) == _SIGNATURE


def read(path: Path, hints: Hints) -> Bag:
    """Read features and what lies beside them."""
    features = _array(path, "features")
    names = (f"{path.stem}.npy", f"{path.stem}.h5")
    coords_path = hints.coords_file(names) or _beside(path, "coords")
    if coords_path is None:
        raise FormatError(
            f"{path}: holds features without coordinates, and {_root(path) / 'coords' / names[0]} "
            "is not there; give the file or folder of coordinates by coords (`sacmil convert "
            "--coords`)"
        )
    coords = _array(coords_path, "coords")
    patch_size = _patch_size_by_folder(path) or hints.patch_size
    if patch_size is None:
        raise _no_patch_size(path, coords)
    return Bag(path.stem, features, coords, Level0Px(patch_size), labels=_labels(path))


def _root(path: Path) -> Path:
    """The folder that holds features/, coords/ and the rest."""
    above = next((folder for folder in path.parents if folder.name == "features"), path.parent)
    return above.parent


def _beside(path: Path, folder: str) -> Path | None:
    places = (_root(path) / folder / f"{path.stem}{suffix}" for suffix in (".npy", ".h5"))
    return next((place for place in places if place.is_file() and place != path), None)


def _is_features_only(path: Path) -> bool:
    with open_file(path) as file:
        return has(file, "features") and not has(file, "coords")


def _array(path: Path, name: str) -> npt.NDArray[Any]:
    if not is_hdf5(path):
        return _numpy_file.load(path)
    with open_file(path) as file:
        return dataset(file, path, name)


def _labels(path: Path) -> npt.NDArray[Any] | None:
    found = next((_beside(path, name) for name in _LABELS if _beside(path, name)), None)
    if found is None:
        return None
    labels = _array(found, next(name for name in _LABELS if name in found.parts))
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.dtype.kind == "f" and (np.isfinite(labels) & (labels == np.round(labels))).all():
        labels = labels.astype(np.int64)
    return labels


def _patch_size_by_folder(path: Path) -> float | None:
    found = re.fullmatch(r"patches_(\d+)", _root(path).name)
    return float(found[1]) if found and int(found[1]) else None


def _no_patch_size(path: Path, coords: npt.NDArray[Any]) -> FormatError:
    grid = find_grid(coords)
    seen = f"; its tiles stand {grid.spacing:g} apart" if grid else ""
    return FormatError(
        f"{path}: nothing says how large the tiles are{seen}; give patch_size "
        "(`sacmil convert --patch-size`) in level-0 pixels"
    )
