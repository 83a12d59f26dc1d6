"""The native layout: an HDF5 file that TRIDENT's readers can read, with more attributes.

========================  =====================================================================
``features``              (N, D) float16 or float32; attributes name, encoder, encoder_hash
``coords``                (N, 2) level-0 pixels, upper left corner; int64 (float64 if fractional)
``labels`` (optional)     (N,) int64: above 0 positive, 0 negative, -1 unknown
------------------------  ---------------------------------------------------------------------
on ``coords``, TRIDENT    patch_size (pixels of the tile), patch_size_level0, overlap, name,
                          level0_magnification, target_magnification, level0_width,
                          level0_height, savetodir; what is unknown is the text "None"
on ``coords``, ours       mpp_level0, patch_size_um, stride_level0, tile_px, bounds_x, bounds_y;
                          what is unknown is absent
on the file               layout = "sacmil bag", schema_version, sacmil_version;
                          provenance, as JSON, where there is one;
                          checksum of all that makes the bag, see below
========================  =====================================================================

No times are stored: equal content gives equal bytes.

Checksums detect damage on a disk when a process first reads a file. The attribute ``checksum`` is a
text such as ``attributes=1a2b3c4d coords=…``: the CRC-32 of each array and of the attributes below.
CRC-32 detects every single flipped bit, and every burst of up to 32 bits. HDF5's own checksum
(Fletcher-32) exists for chunked arrays only.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from sacmil._version import __version__
from sacmil.atomic import atomic_write
from sacmil.bag import Bag, EncoderId
from sacmil.errors import BagError, FormatError, OptionError, check_type
from sacmil.formats._files import has_dataset, is_hdf5, list_names, open_file
from sacmil.hdf5 import UNKNOWN, make_hdf5, make_trident_attributes, read_array
from sacmil.units import Level0Px

LAYOUT = "sacmil bag"
SCHEMA_VERSION = 1
_DAMAGE_ERRORS = (KeyError, RecursionError, AttributeError, TypeError, ValueError, OverflowError)
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


class _FileVersion(NamedTuple):
    path: str
    inode: int
    size: int
    changed_ns: int


_verified_files: set[_FileVersion] = set()
"""Files that need not be verified again."""


def write(path: str | Path, bag: Bag) -> None:
    """Write a bag; the file appears under its name only when it is complete.

    Args:
        path: usually ``<slide_id>.h5``; missing folders are made.
        bag: what to write.
    """
    check_type("path", path, (str, os.PathLike), "the path of a file, such as 'slide.h5'")
    check_type("bag", bag, Bag, "a Bag, such as read_bag('slide.h5')")
    if Path(path).is_dir():
        raise OptionError(f"{path}: is a folder; expected a file in `path`, such as slide.h5")
    with atomic_write(path) as partial:
        partial.write_bytes(make_hdf5(lambda file: _write_content(file, bag)))


def _write_content(file: h5py.File, bag: Bag) -> None:
    stored = {"features": bag.features, "coords": bag.coords, "labels": bag.labels}
    arrays = {name: values for name, values in stored.items() if values is not None}
    attributes = _make_attributes(bag)
    file.attrs.update(attributes["/"])
    for name, values in arrays.items():
        array = file.create_dataset(name, data=values, track_times=False)
        array.attrs.update(attributes.get(name, {}))
    file.attrs[CHECKSUM_ATTRIBUTE] = compute_checksum(file, arrays)


def matches(path: Path) -> bool:
    """Whether the file is marked as a sacmil bag, even if the mark is damaged."""
    if not is_hdf5(path):
        return False
    with open_file(path) as file:
        layout = file.attrs.get("layout")
        # TRIDENT's reader would accept a bag whose layout was damaged, and lose half of it.
        return CHECKSUM_ATTRIBUTE in file.attrs or (isinstance(layout, str) and layout == LAYOUT)


def read(path: Path) -> Bag:
    """Read a native bag; reject one that is incomplete or newer than this version."""
    with open_file(path) as file:
        _check_file(path, file)
        names = [name for name in ("features", "coords", "labels") if has_dataset(file, name)]
        arrays = {name: read_array(file, name) for name in names}
        feature_attributes = dict(file["features"].attrs)
        attributes = dict(file["coords"].attrs)
        provenance = file.attrs.get("provenance")
        verify_checksum(path, file, arrays)
    try:
        return _make_bag(arrays, feature_attributes, attributes, provenance)
    except BagError as error:
        raise FormatError(f"{path}: {error}") from error
    except _DAMAGE_ERRORS as error:
        reason = f"an attribute is of the wrong kind ({error}); expected the native layout"
        if isinstance(error, LookupError):
            reason = f"attribute {error} is missing; expected the native layout"
        elif isinstance(error, RecursionError):
            reason = "its provenance is nested too deeply; expected JSON of a few levels"
        raise FormatError(f"{path}: {reason}, write the bag again with sacmil.write_bag") from error


def read_provenance(path: Path) -> Mapping[str, Any]:
    """Return the provenance of a bag without reading its arrays; empty if it is not stored."""
    with open_file(path) as file:
        text = file.attrs.get("provenance", "{}")
        complete = "features" in file and "coords" in file
    try:
        found = json.loads(text) if complete else {}
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: its provenance is not JSON ({error})") from error
    return found if isinstance(found, dict) else {}


def _check_file(path: Path, file: h5py.File) -> None:
    missing = [name for name in ("features", "coords") if not has_dataset(file, name)]
    if missing:
        raise FormatError(
            f"{path}: holds {list_names(file)}, but no "
            f"{' and no '.join(missing)}; expected 'features' (N, D) and 'coords' (N, 2), "
            "write the bag again"
        )
    version = int(file.attrs.get("schema_version", 0))
    if not 1 <= version <= SCHEMA_VERSION:
        raise FormatError(
            f"{path}: has schema version {version}; this sacmil ({__version__}) reads up to "
            f"{SCHEMA_VERSION}, install a newer one: pip install -U sacmil"
        )


def _make_attributes(bag: Bag) -> dict[str, dict[str, Any]]:
    """Return the attributes of the file and of its arrays: TRIDENT's, then ours."""
    encoder, digest = bag.encoder or EncoderId(UNKNOWN)
    tile_px = bag.tile_px or round(bag.patch_size)
    given, (x, y) = bag.provenance, bag.bounds_origin or (None, None)
    size, stride = bag.patch_size, bag.stride or bag.patch_size
    attributes: dict[str, dict[str, Any]] = {
        "/": {
            "layout": LAYOUT,
            "schema_version": SCHEMA_VERSION,
            "sacmil_version": __version__,
            "provenance": None if given is None else json.dumps(dict(given), sort_keys=True),
        },
        "features": {
            "name": bag.slide_id,
            "savetodir": UNKNOWN,
            "encoder": encoder,
            "encoder_hash": digest or None,
        },
        "coords": make_trident_attributes(
            bag.slide_id, tile_px, size, stride, bag.mpp, bag.slide_size
        )
        | {
            "mpp_level0": bag.mpp,
            "patch_size_um": bag.patch_size_um,
            "stride_level0": bag.stride,
            "tile_px": bag.tile_px,
            "bounds_x": x,
            "bounds_y": y,
        },
    }
    return {
        item: {name: value for name, value in found.items() if value is not None}
        for item, found in attributes.items()
    }


def _make_bag(
    arrays: dict[str, np.ndarray[Any, Any]],
    feature_attributes: dict[str, Any],
    attributes: dict[str, Any],
    provenance: str | None,
) -> Bag:
    known = {
        name: value
        for name, value in attributes.items()
        if not (isinstance(value, str) and value == UNKNOWN)
    }
    name = str(feature_attributes.get("encoder", UNKNOWN))
    encoder = EncoderId(name, feature_attributes.get("encoder_hash"))
    return Bag(
        slide_id=str(feature_attributes["name"]),
        features=arrays["features"],
        coords=arrays["coords"],
        labels=arrays.get("labels"),
        patch_size=Level0Px(known["patch_size_level0"].item()),
        mpp=_get_number(known, "mpp_level0"),
        slide_size=_get_pair(known, "level0_width", "level0_height"),
        bounds_origin=_get_pair(known, "bounds_x", "bounds_y"),
        stride=_get_number(known, "stride_level0"),
        tile_px=_get_number(known, "tile_px"),
        encoder=None if encoder.name == UNKNOWN else encoder,
        provenance=None if provenance is None else json.loads(provenance),
    )


def _get_number(known: dict[str, Any], name: str) -> Any:
    return known[name].item() if name in known else None


def _get_pair(known: dict[str, Any], first: str, second: str) -> tuple[int, int] | None:
    return (int(known[first]), int(known[second])) if first in known else None


def compute_checksum(file: h5py.File, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Return the checksum of a file's content.

    Args:
        file: its attributes are read.
        arrays: its features, coordinates and labels, if there are any.
    """
    crcs = {name: _compute_array_crc(values) for name, values in arrays.items()}
    lines = [
        f"{item} {name} {_to_python(file[item].attrs[name])!r}"
        for item, names in _COVERED_ATTRIBUTES.items()
        for name in names
        if name in file[item].attrs
    ]
    crcs["attributes"] = zlib.crc32("\n".join(lines).encode(errors="backslashreplace"))
    return " ".join(f"{name}={crc:08x}" for name, crc in sorted(crcs.items()))


def verify_checksum(path: Path, file: h5py.File, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Reject a damaged file; a file is verified once per process.

    Raises:
        FormatError: names what is damaged. Files of earlier versions have no checksum and pass.
    """
    if CHECKSUM_ATTRIBUTE not in file.attrs:
        return
    if _get_version(path) in _verified_files:
        return
    written, found = str(file.attrs[CHECKSUM_ATTRIBUTE]), compute_checksum(file, arrays)
    if written != found:
        raise FormatError(
            f"{path}: {_describe_difference(written, found)} since the file was written (its "
            "checksum does not match); restore it from a copy, or delete it and extract or "
            "convert the slide again"
        )
    note_verified(path)


def note_verified(path: Path) -> None:
    """Take a file as verified by another process; it is not verified again until it changes."""
    version = _get_version(path)
    if time.time_ns() - version.changed_ns > _MIN_FILE_AGE_NS:
        _verified_files.add(version)


def _get_version(path: Path) -> _FileVersion:
    status = path.stat()
    return _FileVersion(str(path.absolute()), status.st_ino, status.st_size, status.st_mtime_ns)


def _compute_array_crc(values: npt.NDArray[Any]) -> int:
    values = np.ascontiguousarray(values)
    kind = f"{values.dtype.str} {values.shape}".encode()
    return zlib.crc32(values.reshape(-1).view(np.uint8).data, zlib.crc32(kind))


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
