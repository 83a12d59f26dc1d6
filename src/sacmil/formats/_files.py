"""Read files of HDF5, numpy and torch such that every error names the file and what is wrong.

Nothing in a file is unpickled or run.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import numpy.typing as npt

from sacmil.errors import BagError, ConfigError, FormatError, MissingExtraError
from sacmil.hdf5 import open_dataset, open_hdf5, read_array
from sacmil.limits import check_declared_size, check_zip_size

TENSOR_SUFFIXES = (".pt", ".pth")
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
# h5py raises any of these for a damaged file, depending on its C library.
_DAMAGE_ERRORS = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError)
_UNKNOWN_VALUES = (None, "None", "")
"""TRIDENT writes "None" for an unknown value."""
_HEADER_ARRAYS = ("features", "feats", "patch_embeddings", "coords")
_FEATURE_KEYS = ("features", "feats")


class Header(NamedTuple):
    """What the layout of an HDF5 file is detected by; empty for other files."""

    shapes: dict[str, tuple[int, ...]]
    """Of the arrays whose names are those of some layout."""
    attributes: dict[str, Any]
    """Of the coordinates."""


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
    except (FormatError, BagError, ConfigError):
        raise
    except (*_DAMAGE_ERRORS, MemoryError) as error:
        # str(KeyError) puts quotes around its message
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        detail = " ".join(text.split()) or type(error).__name__
        raise FormatError(
            f"{path}: cannot be read as HDF5, it is truncated or damaged ({detail}); "
            "write or copy it again"
        ) from error


def is_hdf5(path: Path) -> bool:
    """Whether the file begins with the signature of HDF5."""
    try:
        with path.open("rb") as file:
            return file.read(len(_SIGNATURE)) == _SIGNATURE
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error


def is_tensor_file(path: Path) -> bool:
    """Whether a file is named as torch.save's are, and is not HDF5."""
    return path.suffix in TENSOR_SUFFIXES and not is_hdf5(path)


def read_header(path: Path) -> Header:
    """Read what the layout of a file is detected by."""
    if not is_hdf5(path):
        return Header({}, {})
    with open_file(path) as file:
        shapes = {name: file[name].shape for name in _HEADER_ARRAYS if has_dataset(file, name)}
        return Header(shapes, read_attributes(file["coords"]) if "coords" in shapes else {})


def describe_contents(path: Path) -> str:
    """Describe the content of a file, for a message about an unknown layout."""
    if path.stat().st_size == 0:
        return "an empty file"
    if not is_hdf5(path):
        return "a file that is not HDF5"
    with open_file(path) as file:
        return f"an HDF5 file holding {list_names(file)}"


def list_names(file: h5py.File) -> str:
    """Return the names of all that a file holds."""
    return ", ".join(sorted(file)) or "nothing"


def has_dataset(file: h5py.File, name: str) -> bool:
    """Whether the file has an array of that name."""
    return open_dataset(file, name) is not None


def read_dataset(file: h5py.File, path: Path, name: str) -> npt.NDArray[Any]:
    """Read a complete array; other tools store chunks of one row, which are slow one by one."""
    if not has_dataset(file, name):
        raise FormatError(
            f"{path}: found an HDF5 file holding {list_names(file)}; "
            f"expected an array called {name!r}"
        )
    return drop_batch_axis(read_array(file, name))


def drop_batch_axis(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert (1, N, D), which some tools write, to (N, D)."""
    return values[0] if values.ndim == 3 and len(values) == 1 else values


def read_attributes(item: h5py.File | h5py.Dataset) -> dict[str, Any]:
    """Return the attributes as plain Python values, without those that are "None"."""
    values = {name: _to_python(value) for name, value in item.attrs.items()}
    return {name: value for name, value in values.items() if value not in _UNKNOWN_VALUES}


def read_attribute(item: h5py.File | h5py.Dataset, name: str) -> Any:
    """Return one attribute as a plain Python value; None if it is missing or "None"."""
    if not h5py.h5a.exists(item.id, name.encode()):
        return None
    text = _read_text(h5py.h5a.open(item.id, name.encode()))
    value = _to_python(item.attrs[name]) if text is None else text
    return None if value in _UNKNOWN_VALUES else value


def _read_text(found: h5py.h5a.AttrID) -> str | None:
    """Read a single text, as most attributes are, in a third of the time of h5py's ``attrs``."""
    is_single = found.get_space().get_simple_extent_type() == h5py.h5s.SCALAR
    text = h5py.check_string_dtype(found.dtype)
    if not is_single or text is None or text.length is not None:
        return None
    value = np.zeros((), found.dtype)  # h5py's own type: it defines how text is stored in memory
    found.read(value)
    return bytes(value[()]).decode("utf-8", "surrogateescape")


def _to_python(value: Any) -> Any:
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def load_array(path: Path, key: str | None = None) -> npt.NDArray[Any]:
    """Return the array in a .npy file, or the one called ``key`` in a .npz file."""
    try:
        check_zip_size(path)
        with path.open("rb") as file:
            check_declared_size(path, "the file", *[os.fstat(file.fileno()).st_size] * 2)
            found = np.load(file, allow_pickle=False)
            return np.asarray(found if key is None else found[key])
    except FileNotFoundError:
        raise FormatError(f"{path}: there is no such file") from None
    except FormatError:
        raise
    # numpy can raise almost any error for a damaged file: its header is parsed as Python.
    except Exception as error:
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        raise FormatError(
            f"{path}: cannot be read as numpy arrays ({detail}); expected a file of "
            f"{'numpy.save' if key is None else 'numpy.savez'} that holds numbers only, write or "
            "copy it again"
        ) from error


def load_tensors(path: Path) -> Any:
    """Return the tensors of torch.save, or containers of them; anything else is rejected."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", f"reading {path.name}") from error

    check_zip_size(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    # torch can raise almost any error for a damaged file: zip, pickle, storage, memory.
    except Exception as error:
        raise FormatError(f"{path}: {_describe_failure(path, error)}") from error


def _describe_failure(path: Path, error: Exception) -> str:
    expected = "expected a file of torch.save that holds tensors only"
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
        return f"cannot be read ({error.strerror or error}); check the path"
    with path.open("rb") as file:
        if file.read(1) not in (b"P", b"\x80"):  # a zip archive, a pickle
            return f"this is not a PyTorch checkpoint; {expected}, check the path"
    detail = " ".join(str(error).split()).split(". ")[0][:200]
    if isinstance(error, pickle.UnpicklingError) and "Weights only" in detail:
        return f"holds other things than tensors, or is damaged ({detail}); {expected}"
    return f"this PyTorch checkpoint is incomplete or damaged; {expected}, write or copy it again"


def load_features(path: Path) -> npt.NDArray[Any]:
    """Return the array in the file: a bare tensor, or one called features or feats."""
    found = load_tensors(path)  # its error explains how to install torch
    import torch

    if isinstance(found, dict):
        found = next((found[name] for name in _FEATURE_KEYS if name in found), found)
    if not isinstance(found, torch.Tensor):
        names = f" of {', '.join(map(str, list(found)[:4]))}" if isinstance(found, dict) else ""
        raise FormatError(
            f"{path}: holds a {type(found).__name__}{names}; expected a tensor of features (N, D)"
        )
    if found.layout is torch.strided:  # an expanded tensor is larger than its storage
        declared = found.numel() * found.element_size()
        check_declared_size(path, "the tensor", declared, found.untyped_storage().nbytes())
    try:  # numpy has no bfloat16
        array = (found.float() if found.dtype == torch.bfloat16 else found).detach().numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:  # sparse, quantised, meta
        raise FormatError(f"{path}: holds {found.dtype} in an unusual form ({error})") from error
    return drop_batch_axis(np.asarray(array))
