"""HDF5 files from strangers: opened for reading only if all their data is in the file itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from sacmil.errors import FormatError


@contextmanager
def open_hdf5(path: str | Path) -> Iterator[h5py.File]:
    """An HDF5 file open for reading.

    HDF5 can name other files as the place of its data. A downloaded bag could so copy any file the
    user may read into a result, so such a file is rejected before anything in it is read.

    Raises:
        FormatError: a link or an array leads to another file.
    """
    with h5py.File(path, "r") as file:
        found = _find_outside_data(file)
        if found:
            raise FormatError(
                f"{path}: {found}; expected a file that holds all its data itself: write it again "
                "without external links, external storage and virtual datasets"
            )
        yield file


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
