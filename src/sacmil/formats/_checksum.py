"""Checksums of native bags: they detect damage on a disk when a process first reads a file.

The attribute ``checksum`` of the file is a text such as ``attributes=1a2b3c4d coords=…``: the
CRC-32 of each array and of the attributes below. CRC-32 detects every single flipped bit, and
every burst of up to 32 bits. HDF5's own checksum (Fletcher-32) exists for chunked arrays only.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from sacmil.errors import FormatError

CHECKSUM_ATTRIBUTE = "checksum"

# Everything that changes a prediction or a heatmap. Existing files were written with this list:
# a different list needs another CHECKSUM_ATTRIBUTE.
_COVERED_ATTRIBUTES = {
    "/": ("layout", "schema_version", "provenance"),
    "features": ("name", "encoder", "encoder_hash"),
    "coords": (
        *("name", "patch_size", "patch_size_level0", "overlap", "level0_width", "level0_height"),
        *("level0_magnification", "target_magnification", "mpp_level0", "patch_size_um"),
        *("stride_level0", "tile_px", "bounds_x", "bounds_y"),
    ),
}
_MIN_FILE_AGE_NS = 2 * 10**9
"""Age from which a file's time is unique to this version: some disks store whole seconds."""

_verified_files: set[tuple[str, int, int, int]] = set()
"""Files that this process has verified: path, inode, size, time of the last change."""


def compute_checksum(file: h5py.File, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the checksum of a file's content.

    Args:
        file: its attributes are read.
        arrays: its features, coordinates and labels, if there are any.
    """
    crcs = {name: _compute_array_crc(values) for name, values in arrays.items()}
    crcs["attributes"] = zlib.crc32(_serialize_attributes(file).encode(errors="backslashreplace"))
    return " ".join(f"{name}={crc:08x}" for name, crc in sorted(crcs.items()))


def verify_checksum(path: Path, file: h5py.File, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Reject a damaged file; a file is verified once per process.

    Raises:
        FormatError: names what is damaged. Files of earlier versions have no checksum and pass.
    """
    if CHECKSUM_ATTRIBUTE not in file.attrs:
        return
    status = path.stat()
    version = (str(path.absolute()), status.st_ino, status.st_size, status.st_mtime_ns)
    if version in _verified_files:
        return
    written, found = str(file.attrs[CHECKSUM_ATTRIBUTE]), compute_checksum(file, arrays)
    if written != found:
        raise FormatError(
            f"{path}: {_describe_difference(written, found)} since the file was written (its "
            "checksum does not match); restore it from a copy, or delete it and extract or "
            "convert the slide again"
        )
    if time.time_ns() - status.st_mtime_ns > _MIN_FILE_AGE_NS:
        _verified_files.add(version)


def _compute_array_crc(values: npt.NDArray[Any]) -> int:
    values = np.ascontiguousarray(values)
    kind = f"{values.dtype.str} {values.shape}".encode()
    return zlib.crc32(values.reshape(-1).view(np.uint8).data, zlib.crc32(kind))


def _serialize_attributes(file: h5py.File) -> str:
    lines = []
    for item, names in _COVERED_ATTRIBUTES.items():
        attributes = file[item].attrs
        lines += [f"{item} {n} {_to_python(attributes[n])!r}" for n in names if n in attributes]
    return "\n".join(lines)


def _to_python(value: Any) -> Any:
    """Convert to a plain Python value: the repr of numpy's numbers depends on the version."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _describe_difference(written: str, found: str) -> str:
    """Describe which entries of two checksums differ."""
    differing = set(written.split()) ^ set(found.split())
    names = sorted({entry.partition("=")[0] for entry in differing})
    known = [name for name in names if name in ("attributes", "coords", "features", "labels")]
    text = " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)
    return f"{text or 'its checksum'} {'have' if known else 'has'} changed"
