"""Open untrusted HDF5 files, and make files of bags and tiles, which TRIDENT reads too.

A file is opened only if its data is in the file itself and fits the limits.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from sacmil.errors import FormatError
from sacmil.limits import check_declared_size
from sacmil.units import MicronsPerPixel, nominal_magnification

UNKNOWN = "None"
"""What TRIDENT writes for an unknown value."""

_BAG_ARRAYS = ("features", "feats", "coords", "labels", "patch_labels", "inst_labels")
"""The arrays that readers of bags load; only their size is limited."""
_MAX_DEPTH, _MAX_LINKS = 16, 10_000
"""Depth of groups, and entries in total: visiting more can take minutes."""
_OWN_DATA_HINT = (
    "expected a file that holds all its data itself: write it again without external links, "
    "external storage and virtual datasets"
)
_LEAST_BYTES = 2**20
"""Of an array that is read without HDF5; finding its place takes as long as reading a smaller."""
_file_numbers = itertools.count()
_HDF5_VERSIONS = ("v110", "v110")  # from 1.10 on, HDF5 has checksums of its metadata


def make_hdf5(write: Callable[[h5py.File], None]) -> bytes:
    """Return the bytes of a file, made in memory: on a full disk HDF5 would crash the process."""
    in_memory = {"driver": "core", "backing_store": False, "libver": _HDF5_VERSIONS}
    # HDF5 refuses a name that another thread has open
    with h5py.File(f"memory {next(_file_numbers)}", "w", **in_memory) as file:
        write(file)
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def make_trident_attributes(
    name: str,
    tile_px: int,
    patch_size: float,
    stride: float,
    mpp: MicronsPerPixel | None,
    slide_size: tuple[int, int] | None,
) -> dict[str, Any]:
    """Return the attributes of coordinates that TRIDENT reads.

    Args:
        name: of the slide.
        tile_px: side of a tile in its own pixels.
        patch_size: its side in level-0 pixels.
        stride: distance between neighbours in level-0 pixels.
        mpp: microns per level-0 pixel.
        slide_size: width and height of level 0.
    """
    power, shrink = nominal_magnification(mpp) if mpp else None, tile_px / patch_size
    width, height = slide_size or (UNKNOWN, UNKNOWN)
    return {
        "name": name,
        "savetodir": UNKNOWN,
        "patch_size": tile_px,
        "patch_size_level0": _to_int_if_whole(patch_size),
        "overlap": round((patch_size - stride) * shrink),
        "level0_magnification": power or UNKNOWN,
        "target_magnification": _to_int_if_whole(power * shrink) if power else UNKNOWN,
        "level0_width": width,
        "level0_height": height,
    }


def _to_int_if_whole(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value


@contextmanager
def open_hdf5(path: str | Path, *, only: Sequence[str] = ()) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading.

    An HDF5 file can store its data in other files. A downloaded bag could thus copy any file that
    the user may read into a result, so such a file is rejected before anything in it is read. It
    can also declare arrays that were never written, which still take memory (limits.py).

    Args:
        path: of the file.
        only: if only the shapes and attributes of these arrays are read, their names. The rest of
            the file is then not visited, which takes half of the time.

    Raises:
        FormatError: data is in another file, an array is too large, or there are too many groups.
    """
    with h5py.File(h5py.h5f.open(_encode_path(path), h5py.h5f.ACC_RDONLY)) as file:
        if only and all(_is_stored_in_file(file, name) for name in only):
            yield file
            return
        problem = _find_problem(file)
        if problem:
            raise FormatError(f"{path}: {problem}")
        found = {name: open_dataset(file, name) for name in _BAG_ARRAYS}
        _check_sizes(path, {name: array for name, array in found.items() if array})
        yield file


def _encode_path(path: str | Path) -> bytes:
    """Return a file's name in the encoding HDF5 expects, which is UTF-8 on Windows."""
    return str(path).encode() if os.name == "nt" else os.fsencode(path)


def _is_stored_in_file(file: h5py.File, name: str) -> bool:
    """Whether an array is stored in the file itself, or does not exist."""
    if not file.id.links.exists(name.encode()):
        return True
    if file.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        return False
    array = open_dataset(file, name)
    return array is None or _find_outside_data(array) is None


def open_dataset(file: h5py.File, name: str) -> h5py.h5d.DatasetID | None:
    """Return an array of a file, or None if there is none of that name.

    It avoids h5py's high-level objects, which take most of the time of reading a header.

    Args:
        file: open for reading.
        name: of the array.
    """
    try:
        found = h5py.h5o.open(file.id, name.encode())
    except KeyError:
        return None
    return found if isinstance(found, h5py.h5d.DatasetID) else None


def read_array(file: h5py.File, name: str) -> npt.NDArray[Any]:
    """Read an array of a file; a large one that is stored as memory holds it without HDF5.

    HDF5 has a lock, so that several threads would read one after the other.
    """
    array = file[name]
    position = _find_position(array) if file.driver == "sec2" else None
    if position is not None:
        values = np.empty(array.shape, array.dtype)
        if _read_bytes(file.id.get_vfd_handle(), position, values):
            return values
    return np.asarray(array[()])


def _find_position(array: h5py.Dataset) -> int | None:
    """Return where the bytes of an array begin; None if HDF5 has to read it."""
    is_plain = array.chunks is None and not array.external
    if not (is_plain and array.nbytes >= _LEAST_BYTES and hasattr(os, "preadv")):
        return None
    known = array.dtype.isnative and array.dtype.kind in "fiu"
    if not (known and array.id.get_type().equal(h5py.h5t.py_create(array.dtype))):
        return None
    position: int | None = array.id.get_offset()
    return position


def _read_bytes(descriptor: int, position: int, out: npt.NDArray[Any]) -> bool:
    """Read bytes of an open file into an array; return False if there are too few."""
    rest = memoryview(out.reshape(-1).view(np.uint8).data)
    while rest:
        count = os.preadv(descriptor, [rest], position)
        if not count:
            return False
        rest, position = rest[count:], position + count
    return True


def _check_sizes(path: str | Path, arrays: Mapping[str, h5py.h5d.DatasetID]) -> None:
    """Reject arrays that are too large, one by one or in total."""
    sizes = {name: _count_bytes(array) for name, array in arrays.items()}
    for name, array in arrays.items():
        check_declared_size(path, repr(name), sizes[name], array.get_storage_size())
    total = sum(sizes.values())
    check_declared_size(path, " and ".join(map(repr, arrays)), total, total)


def _count_bytes(array: h5py.h5d.DatasetID) -> int:
    """Return the bytes an array takes in memory; one without a shape takes none."""
    return int(array.get_space().get_simple_extent_npoints() * array.dtype.itemsize)


def _find_problem(file: h5py.File) -> str | None:
    """Visit all links and arrays of a file; return why it cannot be read, None if it can."""
    count = itertools.count(1)

    def inspect_link(name: bytes, info: h5py.h5l.LinkInfo) -> str | None:
        if name.count(b"/") > _MAX_DEPTH or next(count) > _MAX_LINKS:
            return (
                f"holds more than {_MAX_LINKS:,} entries, or groups more than {_MAX_DEPTH} deep; "
                "expected features and coords: this is not a bag"
            )
        if info.type != h5py.h5l.TYPE_EXTERNAL:
            return None
        target = file.get(name, getlink=True).filename
        return f"{_decode_name(name)!r} is a link to another file, {target!r}; {_OWN_DATA_HINT}"

    def inspect_object(name: bytes, info: h5py.h5o.ObjInfo) -> str | None:
        if info.type != h5py.h5o.TYPE_DATASET:
            return None
        outside = _find_outside_data(h5py.h5d.open(file.id, name))
        return outside and f"{_decode_name(name)!r} {outside}; {_OWN_DATA_HINT}"

    # Neither visit follows a link out of the file.
    problem: str | None = file.id.links.visit(inspect_link, info=True)
    return problem or h5py.h5o.visit(file.id, inspect_object, info=True)


def _find_outside_data(array: h5py.h5d.DatasetID) -> str | None:
    """Return where the data of an array is, if it is not in the file itself."""
    stored = array.get_create_plist()
    if stored.get_layout() == h5py.h5d.VIRTUAL:
        return "is a virtual dataset, whose data is in other files"
    if stored.get_external_count() > 0:
        return f"has its data in another file, {os.fsdecode(stored.get_external(0)[0])!r}"
    return None


def _decode_name(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
