"""HDF5 files opened so that every failure names the file and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from sacmil.errors import BagError, FormatError

_SIGNATURE = b"\x89HDF\r\n\x1a\n"


@contextmanager
def open_file(path: Path) -> Iterator[h5py.File]:
    """An HDF5 file open for reading; whatever h5py stumbles over becomes a FormatError."""
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (FormatError, BagError):
        raise
    # h5py reports damage by whichever of these its C library happens to produce.
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, MemoryError) as error:
        raise FormatError(_damage(path, error)) from error


def is_hdf5(path: Path) -> bool:
    """Whether the file begins as HDF5 files do."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error


def contents(path: Path) -> str:
    """What is in a file, in words, for a message about not knowing its layout."""
    if path.stat().st_size == 0:
        return "an empty file"
    if not is_hdf5(path):
        return "a file that is not HDF5"
    with open_file(path) as file:
        names = ", ".join(sorted(file)) or "nothing"
    return f"an HDF5 file holding {names}"


def _damage(path: Path, error: Exception) -> str:
    # str(KeyError) puts quotes around its message
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    detail = " ".join(text.split()) or type(error).__name__
    return (
        f"{path}: cannot be read as HDF5, it is truncated or damaged ({detail}); "
        "write or copy it again"
    )
