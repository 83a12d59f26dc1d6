"""Where the features of a bag are in its file, so that they can be read again at disk speed.

The first read of a bag goes through its layout and checks everything. Training reads the same bag
in every epoch: its bytes then go straight into the memory they are needed in. HDF5 has a lock that
lets one thread read at a time; these reads need no lock.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from sacmil.errors import FormatError
from sacmil.formats._files import is_hdf5, open_file
from sacmil.hdf5 import open_dataset

_ARRAYS = ("features", "feats", "patch_embeddings")
"""What layouts in HDF5 call the features."""
_MAX_EXTENTS = 4096
"""Beyond, so many small reads are slower than HDF5."""
_ZIP_HEADER = struct.Struct("<26xHH")
"""The part of a zip entry before its name; it ends with the lengths of the name and of the rest."""

FileVersion = tuple[int, int, int]
"""Inode, size and time of the last change."""


class Extent(NamedTuple):
    """Bytes that follow each other, in the file and in the array."""

    position: int
    """Of the first byte in the file."""
    start: int
    """Of the first byte in the array."""
    size: int


@dataclass(frozen=True)
class StoredFeatures:
    """The features of a bag as a file stores them, without compression."""

    path: Path
    version: FileVersion
    extents: tuple[Extent, ...]

    def read_into(self, out: memoryview) -> bool:
        """Read the features; return False if the file has changed since it was looked at.

        Args:
            out: of bytes, as many as the features have.
        """
        try:
            with self.path.open("rb", buffering=0) as file:
                if _get_version(file.fileno()) != self.version:
                    return False
                return all(_read_extent(file, extent, out) for extent in self.extents)
        except OSError:
            return False  # the layout's own reader says what is wrong


def find_stored_features(path: Path, features: npt.NDArray[Any]) -> StoredFeatures | None:
    """Return where a file stores the features of its bag; None if it compresses or converts them.

    What is found is read and compared, so that it is right whatever the layout.

    Args:
        path: of the bag.
        features: as the layout read them.
    """
    try:
        with path.open("rb", buffering=0) as file:
            version = _get_version(file.fileno())
        for extents in _list_candidates(path, features):
            stored = StoredFeatures(path, version, extents)
            again = np.empty_like(features)
            if stored.read_into(_view_bytes(again).data) and np.array_equal(
                _view_bytes(again), _view_bytes(features)
            ):
                return stored
    # A file of an unusual form is read by its layout every time.
    except (FormatError, OSError, ValueError, LookupError, RuntimeError, zipfile.BadZipFile):
        return None
    return None


def _view_bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return values.reshape(-1).view(np.uint8)


def _get_version(descriptor: int) -> FileVersion:
    status = os.fstat(descriptor)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read_extent(file: Any, extent: Extent, out: memoryview) -> bool:
    rest = out[extent.start : extent.start + extent.size]
    file.seek(extent.position)
    while rest:
        count = file.readinto(rest)
        if not count:
            return False
        rest = rest[count:]
    return True


def _list_candidates(path: Path, features: npt.NDArray[Any]) -> Iterator[tuple[Extent, ...]]:
    """Yield places that have the size of the features."""
    if is_hdf5(path):
        with open_file(path, only=_ARRAYS) as file:
            arrays = [open_dataset(file, name) for name in _ARRAYS]
            found = [_find_extents(each, features) for each in arrays if each is not None]
        yield from (extents for extents in found if extents)
    elif zipfile.is_zipfile(path):
        yield from _list_zip_entries(path, features.nbytes)
    elif path.suffix == ".npy":
        start = path.stat().st_size - features.nbytes  # numpy writes nothing after the numbers
        if start > 0:
            yield (Extent(start, 0, features.nbytes),)


def _find_extents(
    array: h5py.h5d.DatasetID, features: npt.NDArray[Any]
) -> tuple[Extent, ...] | None:
    if array.dtype != features.dtype:
        return None
    if array.get_create_plist().get_layout() != h5py.h5d.CHUNKED:
        position = array.get_offset()
        return None if position is None else (Extent(position, 0, features.nbytes),)
    if array.get_create_plist().get_nfilters() or array.shape != features.shape:
        return None
    rows, *width = array.get_create_plist().get_chunk()
    if tuple(width) != features.shape[1:] or not hasattr(array, "chunk_iter"):
        return None
    row_bytes = features.nbytes // len(features)
    chunks: list[Extent] = []

    def add(chunk: Any) -> None:
        first = chunk.chunk_offset[0]
        size = min(rows, len(features) - first) * row_bytes  # the last chunk may be cut
        chunks.append(Extent(chunk.byte_offset, first * row_bytes, size))

    array.chunk_iter(add)
    joined = tuple(_join_extents(sorted(chunks, key=lambda extent: extent.start)))
    is_whole = sum(extent.size for extent in joined) == features.nbytes
    return joined if is_whole and len(joined) <= _MAX_EXTENTS else None


def _join_extents(extents: Iterable[Extent]) -> Iterator[Extent]:
    """Join extents that follow each other in the file too."""
    last: Extent | None = None
    for extent in extents:
        if last and last.position + last.size == extent.position:
            last = last._replace(size=last.size + extent.size)
            continue
        if last:
            yield last
        last = extent
    if last:
        yield last


def _list_zip_entries(path: Path, size: int) -> Iterator[tuple[Extent, ...]]:
    """Yield the entries of that size, which torch.save does not compress."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for entry in archive.infolist():
            if entry.compress_type == zipfile.ZIP_STORED and entry.file_size == size:
                file.seek(entry.header_offset)
                lengths = _ZIP_HEADER.unpack(file.read(_ZIP_HEADER.size))
                position = entry.header_offset + _ZIP_HEADER.size + sum(lengths)
                yield (Extent(position, 0, size),)
