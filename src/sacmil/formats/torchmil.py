"""torchmil's layout: parallel folders with a file per slide in each.

::

    features/<slide>.npy        (N, D); published sets: features/features_<encoder>/<slide>.npy
    coords/<slide>.npy          (N, 2), level-0 pixels
    patch_labels/<slide>.npy    (N,) label per instance as in Bag.labels, optional;
                                also called inst_labels
    labels/<slide>.npy          label of the slide; not part of a bag

The other files are found from the path of the features. A .h5 file with one array of the folder's
name is read too. The patch size comes from the name of the folder above, ``patches_<pixels>``;
otherwise it must be given.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.errors import FormatError
from sacmil.formats._files import is_hdf5, load_array, open_file, read_dataset, read_header
from sacmil.formats._hints import Hints, make_no_coords_error
from sacmil.formats._spacing import describe_grid
from sacmil.units import Level0Px

_LABEL_FOLDERS = ("patch_labels", "inst_labels")
_SIGNATURE = b"\x93NUMPY"


def matches(path: Path) -> bool:
    """Whether it is an array, or an h5 of features with coordinates in the folder beside it."""
    if is_hdf5(path):
        shapes = read_header(path).shapes
        is_features_only = "features" in shapes and "coords" not in shapes
        return is_features_only and _find_sibling(path, "coords") is not None
    with path.open("rb") as file:
        return file.read(len(_SIGNATURE)) == _SIGNATURE


def read(path: Path, hints: Hints) -> Bag:
    """Read features, coordinates and labels."""
    features = _read_array(path, "features")
    names = (f"{path.stem}.npy", f"{path.stem}.h5")
    coords_path = hints.find_coords_file(names) or _find_sibling(path, "coords")
    if coords_path is None:
        missing = _find_root(path) / "coords" / names[0]
        raise make_no_coords_error(path, f"{missing} does not exist")
    coords = _read_array(coords_path, "coords")
    patch_size = _parse_patch_size(path) or hints.patch_size
    if patch_size is None:
        raise FormatError(
            f"{path}: the tile size is not stored{describe_grid(coords)}; give `patch_size` in "
            "level-0 pixels"
        )
    return Bag(path.stem, features, coords, Level0Px(patch_size), labels=_read_labels(path))


def _find_root(path: Path) -> Path:
    """Return the folder that holds features/, coords/ and the labels."""
    above = next((folder for folder in path.parents if folder.name == "features"), path.parent)
    return above.parent


def _find_sibling(path: Path, folder: str) -> Path | None:
    files = (_find_root(path) / folder / f"{path.stem}{suffix}" for suffix in (".npy", ".h5"))
    return next((file for file in files if file.is_file() and file != path), None)


def _read_array(path: Path, name: str) -> npt.NDArray[Any]:
    if not is_hdf5(path):
        return load_array(path)
    with open_file(path) as file:
        return read_dataset(file, path, name)


def _read_labels(path: Path) -> npt.NDArray[Any] | None:
    found = ((name, _find_sibling(path, name)) for name in _LABEL_FOLDERS)
    name, file = next((each for each in found if each[1]), ("", None))
    if file is None:
        return None
    labels = _read_array(file, name)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.dtype.kind == "f" and (np.isfinite(labels) & (labels == np.round(labels))).all():
        labels = labels.astype(np.int64)
    return labels


def _parse_patch_size(path: Path) -> float | None:
    found = re.fullmatch(r"patches_(\d+)", _find_root(path).name)
    return float(found[1]) if found and int(found[1]) else None
