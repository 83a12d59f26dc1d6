"""HDF5 files from strangers: opened only if their data is in the file itself, and fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from sacmil.errors import FormatError
from sacmil.limits import check_declared_size

_ARRAYS = ("features", "feats", "coords", "labels", "patch_labels", "inst_labels")
"""What the readers of bags and tiles read; other arrays of a file may be as large as they like."""


@contextmanager
def open_hdf5(path: str | Path) -> Iterator[h5py.File]:
    """An HDF5 file open for reading.

    HDF5 can name other files as the place of its data. A downloaded bag could so copy any file the
    user may read into a result, so such a file is rejected before anything in it is read. It can
    also declare arrays that were never written, which take memory all the same (limits.py).

    Raises:
        FormatError: a link or an array leads to another file, or the arrays are too large.
    """
    with h5py.File(path, "r") as file:
        found = _find_outside_data(file)
        if found:
            raise FormatError(
                f"{path}: {found}; expected a file that holds all its data itself: write it again "
                "without external links, external storage and virtual datasets"
            )
        _check_sizes(path, file)
        yield file


def _check_sizes(path: str | Path, file: h5py.File) -> None:
    """Reject arrays that one file may not ask for, singly or together."""
    found = {name: file.get(name) for name in _ARRAYS}
    arrays = {name: item for name, item in found.items() if isinstance(item, h5py.Dataset)}
    for name, array in arrays.items():
        check_declared_size(path, repr(name), array.nbytes, array.id.get_storage_size())
    together = sum(array.nbytes for array in arrays.values())
    check_declared_size(path, " and ".join(map(repr, arrays)), together, together)


def _find_outside_data(file: h5py.File) -> str | None:
    """What leads out of the file, in words; None where nothing does."""

    def look_at_link(name: str, link: Any) -> str | None:
        if isinstance(link, h5py.ExternalLink):
            return f"{name!r} is a link to another file, {link.filename!r}"
        return None

    def look_at_object(name: str, found: Any) -> str | None:
        if not isinstance(found, h5py.Dataset):
            return None
        if found.is_virtual:
            return f"{name!r} is a virtual dataset, whose data is in other files"
        if found.external:
            return f"{name!r} has its data in another file, {found.external[0][0]!r}"
        return None

    # Neither visit follows a link out of the file.
    outside = file.visititems_links(look_at_link) or file.visititems(look_at_object)
    return None if outside is None else str(outside)
