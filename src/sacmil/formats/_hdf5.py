"""Open HDF5 files such that every error names the file and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from sacmil.errors import BagError, FormatError
from sacmil.hdf5 import open_dataset, open_hdf5

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# h5py raises any of these for a damaged file, depending on its C library.
_DAMAGE_ERRORS = (
    OSError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    ArithmeticError,
    MemoryError,
)
_UNKNOWN = "None"
"""TRIDENT's text for an unknown value."""


@contextmanager
def open_file(path: Path, *, only: Sequence[str] = ()) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading; every error of h5py becomes a FormatError.

    Args:
        path: of the file.
        only: as for open_hdf5.
    """
    try:
        with open_hdf5(path, only=only) as file:
            yield file
    except (FormatError, BagError):
        raise
    except _DAMAGE_ERRORS as error:
        raise FormatError(_describe_damage(path, error)) from error


def is_hdf5(path: Path) -> bool:
    """Whether the file begins with the signature of HDF5."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error


def describe_contents(path: Path) -> str:
    """Describe the content of a file, for a message about an unknown layout."""
    if path.stat().st_size == 0:
        return "an empty file"
    if not is_hdf5(path):
        return "a file that is not HDF5"
    with open_file(path) as file:
        names = ", ".join(sorted(file)) or "nothing"
    return f"an HDF5 file holding {names}"


def has_dataset(file: h5py.File, name: str) -> bool:
    """Whether the file has an array of that name."""
    return open_dataset(file, name) is not None


def read_dataset(file: h5py.File, path: Path, name: str) -> npt.NDArray[Any]:
    """Read a complete array; other tools store chunks of one row, which are slow one by one."""
    if not has_dataset(file, name):
        raise FormatError(
            f"{path}: found an HDF5 file holding {', '.join(sorted(file)) or 'nothing'}; "
            f"expected an array called {name!r}"
        )
    return np.asarray(file[name][()])


def read_attributes(item: h5py.File | h5py.Dataset) -> dict[str, Any]:
    """Return the attributes as plain Python values, without those that are "None"."""
    values = {name: _to_python(value) for name, value in item.attrs.items()}
    return {name: value for name, value in values.items() if value not in (None, _UNKNOWN, "")}


def read_attribute(item: h5py.File | h5py.Dataset, name: str) -> Any:
    """Return one attribute as a plain Python value; None if it is missing or "None"."""
    if not h5py.h5a.exists(item.id, name.encode()):
        return None
    text = _read_text(h5py.h5a.open(item.id, name.encode()))
    value = _to_python(item.attrs[name]) if text is None else text
    return None if value in (None, _UNKNOWN, "") else value


def _read_text(found: h5py.h5a.AttrID) -> str | None:
    """Read a single text, as most attributes are, in a third of the time of h5py's ``attrs``."""
    is_single = found.get_space().get_simple_extent_type() == h5py.h5s.SCALAR
    dtype = found.dtype
    text = h5py.check_string_dtype(dtype)
    if not is_single or text is None or text.length is not None:
        return None
    value = np.zeros((), dtype=dtype)  # h5py's own type: it defines how text is stored in memory
    found.read(value)
    return bytes(value[()]).decode("utf-8", "surrogateescape")


def _to_python(value: Any) -> Any:
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _describe_damage(path: Path, error: Exception) -> str:
    # str(KeyError) puts quotes around its message
    text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    detail = " ".join(text.split()) or type(error).__name__
    return (
        f"{path}: cannot be read as HDF5, it is truncated or damaged ({detail}); "
        "write or copy it again"
    )
