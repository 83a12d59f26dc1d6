"""What a cell is described by: its type as one of several, its markers, or both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from sacmil.cells.table import CellTable
from sacmil.errors import FormatError, OptionError


@dataclass(frozen=True)
class CellFeatures:
    """The features of a cell, in this order."""

    types: tuple[str, ...] = ()
    """Each is a feature of 0 or 1."""
    markers: tuple[str, ...] = ()
    """Each is a feature with the marker's value."""
    arcsinh: float | None = None
    """Markers are divided by it, and their inverse hyperbolic sine is taken; None leaves them."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each feature."""
        return self.types + self.markers

    @property
    def digest(self) -> str:
        """A hash that other features do not have."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @classmethod
    def collect(cls, tables: Iterable[CellTable], arcsinh: float | None = None) -> CellFeatures:
        """Return the features that describe all cells of some tables."""
        types: set[str] = set()
        markers: tuple[str, ...] | None = None
        for table in tables:
            if table.type is not None:
                types |= set(table.type)
            if markers is not None and markers != table.marker_names:
                raise FormatError(
                    f"{table.path}: has other markers than the tables before it; name those of all "
                    "by `markers`"
                )
            markers = table.marker_names
        if arcsinh is not None and not markers:
            raise OptionError("`arcsinh` is for markers; name them by `markers`, or leave it out")
        return cls(tuple(sorted(types, key=_sort_key)), markers or (), arcsinh)

    def compute(self, table: CellTable) -> npt.NDArray[np.float32]:
        """Return the features of all cells of a table, (N, F)."""
        parts = [np.empty((len(table.coords), 0), np.float32)]
        if self.types:
            parts.append(self._encode_types(table))
        if self.markers:
            parts.append(self._scale_markers(table))
        return np.concatenate(parts, axis=1)

    def _encode_types(self, table: CellTable) -> npt.NDArray[np.float32]:
        if table.type is None:
            raise FormatError(f"{table.path}: has no types of cells; name their column by `type`")
        number = {name: index for index, name in enumerate(self.types)}
        unknown = sorted({name for name in table.type if name not in number}, key=_sort_key)
        if unknown:
            raise FormatError(
                f"{table.path}: has cells of the types {', '.join(unknown)}; expected "
                f"{', '.join(self.types)}: rename them, or leave those cells out"
            )
        column = np.array([number[name] for name in table.type])
        encoded: npt.NDArray[np.float32] = np.eye(len(self.types), dtype=np.float32)[column]
        return encoded

    def _scale_markers(self, table: CellTable) -> npt.NDArray[np.float32]:
        if table.marker_names != self.markers or table.markers is None:
            raise FormatError(
                f"{table.path}: has the markers {', '.join(table.marker_names) or 'none'}; "
                f"expected {', '.join(self.markers)}"
            )
        return table.markers if self.arcsinh is None else np.arcsinh(table.markers / self.arcsinh)


def _sort_key(name: str) -> tuple[int, float, str]:
    """Sort numbers by value, and texts after them."""
    return (0, float(name), name) if name.replace(".", "", 1).isdecimal() else (1, 0.0, name)


def measure_neighbor_distance(images: Sequence[npt.NDArray[Any]]) -> float:
    """Return the median distance of a cell to its nearest neighbor, over all images.

    Cells at the same place do not count; NaN if no image has two places.

    >>> measure_neighbor_distance([np.array([[0.0, 0], [3, 0], [7, 0]])])
    3.0

    Args:
        images: the coordinates of each (N, 2).
    """
    found = [np.empty(0)]
    for coords in images:
        places = np.unique(coords, axis=0)
        if len(places) > 1:
            found.append(cKDTree(places).query(places, k=2)[0][:, 1])
    distances = np.concatenate(found)
    return float(np.median(distances)) if len(distances) else float("nan")
