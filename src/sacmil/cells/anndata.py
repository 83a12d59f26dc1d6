"""Read AnnData files (.h5ad) as scanpy and squidpy write them, without the package anndata."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import numpy.typing as npt

from sacmil.cells.raw import RawCells
from sacmil.errors import FormatError
from sacmil.hdf5 import open_hdf5
from sacmil.limits import check_declared_size

if TYPE_CHECKING:
    import pandas

_POSITIONS = ("spatial", "X_spatial")
"""Arrays of obsm that hold positions."""
_DAMAGE_ERRORS = (OSError, LookupError, ValueError, TypeError, RuntimeError, AttributeError)


def read_anndata(path: Path) -> RawCells:
    """Read the table of cells, their positions, and the names of the markers."""
    try:
        with open_hdf5(path) as file:
            frame = _read_frame(path, file, "obs")
            coords = _read_positions(path, file, len(frame))
            names = tuple(_read_index(path, file["var"])) if "var" in file else ()
    except _DAMAGE_ERRORS as error:
        raise FormatError(
            f"{path}: cannot be read as AnnData ({error}); expected a file that anndata 0.8 or "
            "later wrote: read it there, and write it again"
        ) from error
    return RawCells(path, frame, coords, names, partial(read_matrix, path, names, len(frame)))


def _read_frame(path: Path, file: h5py.File, name: str) -> pandas.DataFrame:
    import pandas

    group = file[name]
    if not isinstance(group, h5py.Group):
        raise ValueError(f"{name} is not a group")
    names = [str(column) for column in group.attrs["column-order"]]
    columns = {column: _read_texts(path, group[column]) for column in names}
    return pandas.DataFrame(columns, index=range(len(_read_index(path, group))), dtype=object)


def _read_index(path: Path, group: h5py.Group) -> npt.NDArray[np.object_]:
    return _read_texts(path, group[str(group.attrs["_index"])])


def _read_texts(path: Path, column: h5py.Dataset | h5py.Group) -> npt.NDArray[np.object_]:
    """Return a column as texts; what is missing becomes empty."""
    if isinstance(column, h5py.Dataset):
        return _to_texts(_read_array(path, column))
    if "categories" in column:
        categories = _to_texts(_read_array(path, column["categories"]))
        codes = _read_array(path, column["codes"]).astype(np.int64)
        return np.append(categories, "").astype(object)[codes]  # -1 is missing
    texts = _to_texts(_read_array(path, column["values"]))
    texts[_read_array(path, column["mask"]).astype(bool)] = ""
    return texts


def _to_texts(values: npt.NDArray[Any]) -> npt.NDArray[np.object_]:
    def convert(value: Any) -> str:
        if isinstance(value, bytes):
            return value.decode()
        missing = isinstance(value, float | np.floating) and np.isnan(value)
        return "" if missing else str(value)

    return np.array([convert(value) for value in values.tolist()], dtype=object)


def _read_array(path: Path, array: h5py.Dataset) -> npt.NDArray[Any]:
    check_declared_size(path, repr(array.name), array.nbytes, array.id.get_storage_size())
    return np.asarray(array[()])


def _read_positions(path: Path, file: h5py.File, count: int) -> npt.NDArray[np.float64] | None:
    for name in _POSITIONS:
        if "obsm" in file and name in file["obsm"]:
            coords = _read_array(path, file["obsm"][name]).astype(np.float64)
            if coords.shape[:1] != (count,) or coords.ndim != 2 or coords.shape[1] < 2:
                raise ValueError(f"obsm/{name} has shape {coords.shape} for {count} cells")
            return np.ascontiguousarray(coords[:, :2])
    return None


def read_matrix(
    path: Path, names: Sequence[str], count: int, chosen: Sequence[str]
) -> npt.NDArray[np.float32]:
    """Return the markers of all cells, (N, M).

    Args:
        path: of the file.
        names: of all markers in the file.
        count: of cells.
        chosen: names of those to return.
    """
    from scipy.sparse import csc_array, csr_array

    columns = [names.index(name) for name in chosen]
    try:
        with open_hdf5(path) as file:
            stored = file["X"]
            if isinstance(stored, h5py.Dataset):
                values = _read_array(path, stored)
            else:
                made = {"csr_matrix": csr_array, "csc_matrix": csc_array}
                parts = tuple(_read_array(path, stored[n]) for n in ("data", "indices", "indptr"))
                kind = made[str(stored.attrs["encoding-type"])]
                values = kind(parts, shape=tuple(map(int, stored.attrs["shape"])))
            if values.shape != (count, len(names)):
                raise ValueError(f"X has shape {values.shape} for {count} cells")
            picked = values[:, columns]
    except _DAMAGE_ERRORS as error:
        raise FormatError(
            f"{path}: the markers (X) cannot be read ({error}); write the file again"
        ) from error
    dense = picked if isinstance(picked, np.ndarray) else picked.toarray()
    return np.asarray(dense, dtype=np.float32)
