"""Points in square cells, padded so that all points near a position are one slice of an array."""

from __future__ import annotations

from math import ceil, sqrt
from typing import NamedTuple

import numpy as np

from sacmil.regions.lattice import Ints, Lattice

POINTS_PER_CELL = 9  # fewer mean more rows to visit, more mean coarser windows
MAX_PADDING = 6  # slots per point; unevenly spread points get larger cells
MAX_POINTS_IN_ONE_CELL = 500  # up to this number, searching all points at once is faster

UNBOUNDED = 1 << 30  # farther than any two points are apart

Window = tuple[slice, slice]


class CellLayout(NamedTuple):
    """The cell of each point, for one size of cells."""

    side: int
    shape: tuple[int, int]
    cell_of_point: Ints
    counts: Ints

    @property
    def slot_count(self) -> int:
        """Number of slots if every cell has as many as the fullest needs."""
        return int(self.counts.max()) * len(self.counts)


class PointGrid:
    """Some points of a lattice, each with a number that settles ties between equal distances.

    A row of cells is a row of slots, so a window of cells is a rectangle of slots. The key of
    the slot of a point (X, Y) as seen from (x, y) is, with b for ``lattice.base``::

        b ((X - x)^2 + (Y - y)^2) + tie = (-2bx, -2by, 1, b (x^2 + y^2)) · (X, Y, weight, 1)

    where weight = b (X^2 + Y^2) + tie: one matrix product instead of seven passes. int64 wraps
    around, so the result is exact even if intermediate values overflow.
    """

    def __init__(self, lattice: Lattice, points: Ints, ties: Ints, empty: int) -> None:
        """Assign points to cells; the weight of slots without a point is ``empty``."""
        x, y = lattice.x[points], lattice.y[points]
        self.base = lattice.base
        self.left, self.bottom = int(x.min()), int(y.min())
        cells = _choose_cells(x - self.left, y - self.bottom)
        self.side, (self.rows, self.columns) = cells.side, cells.shape
        self.depth = int(cells.counts.max())
        slots = _assign_slots(cells)
        self.slot_of = np.empty(len(lattice.x), dtype=np.int64)
        self.slot_of[points] = slots
        planes = np.zeros((4, self.rows, self.columns * self.depth), dtype=np.int64)
        planes[2], planes[3] = empty, 1
        weights = self.base * (x * x + y * y) + ties
        for plane, values in zip(planes[:3], (x, y, weights), strict=True):
            plane.reshape(-1)[slots] = values
        self.weights = planes[2]
        self.planes = planes.transpose(1, 0, 2)

    def window(self, x: int, y: int, radius: int) -> tuple[Window, int]:
        """Return the slots of the cells within a radius, and the distance of the next cells."""
        x, y = x - self.left, y - self.bottom
        rows, row_end = _find_cell_range(x, radius, self.side, self.rows)
        columns, column_end = _find_cell_range(y, radius, self.side, self.columns)
        slots = slice(columns.start * self.depth, columns.stop * self.depth)
        return (rows, slots), min(row_end, column_end)

    def keys(self, x: int, y: int, window: Window) -> Ints:
        """Return the keys of a window's slots as seen from a position."""
        factor = -2 * self.base
        vector = np.array((factor * x, factor * y, 1, self.base * (x * x + y * y)), dtype=np.int64)
        rows, slots = window
        keys: Ints = vector @ self.planes[rows, :, slots]
        return keys


def _find_cell_range(position: int, radius: int, side: int, count: int) -> tuple[slice, int]:
    """Return the cells of one axis within a radius, and the distance to the next ones."""
    first, stop = (position - radius) // side, (position + radius) // side + 1
    before = position - first * side + 1 if first > 0 else UNBOUNDED
    after = stop * side - position if stop < count else UNBOUNDED
    # A position outside the grid may have no cells within the radius.
    return slice(max(first, 0), max(min(stop, count), 0)), min(before, after)


def _assign_slots(cells: CellLayout) -> Ints:
    """Return the slot of each point; points of a cell get consecutive slots."""
    order = np.argsort(cells.cell_of_point, kind="stable")
    first_slot = np.arange(len(cells.counts)) * int(cells.counts.max())
    skipped = first_slot - (np.cumsum(cells.counts) - cells.counts)
    slots = np.empty_like(order)
    slots[order] = np.arange(len(order)) + np.repeat(skipped, cells.counts)
    return slots


def _choose_cells(x: Ints, y: Ints) -> CellLayout:
    """Return cells of about 9 points where there is tissue; larger ones if too many are empty."""
    width, height, count = int(x.max()) + 1, int(y.max()) + 1, len(x)
    if count <= MAX_POINTS_IN_ONE_CELL:
        return _make_cells(x, y, max(width, height))
    coarse = _make_cells(x, y, ceil(sqrt(4 * POINTS_PER_CELL * width * height / count)))
    occupied = np.count_nonzero(coarse.counts) * coarse.side**2
    cells = _make_cells(x, y, ceil(sqrt(POINTS_PER_CELL * occupied / count)))
    while cells.slot_count > MAX_PADDING * count:
        cells = _make_cells(x, y, 2 * cells.side)
    return cells


def _make_cells(x: Ints, y: Ints, side: int) -> CellLayout:
    shape = int(x.max()) // side + 1, int(y.max()) // side + 1
    cell = (x // side) * shape[1] + y // side
    return CellLayout(side, shape, cell, np.bincount(cell, minlength=shape[0] * shape[1]))
