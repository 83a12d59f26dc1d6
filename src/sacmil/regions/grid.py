"""Points in square cells; finds those nearest to a centre, and the farthest from all, quickly.

Cells are padded so that all points near a position are one slice of an array.
"""

from __future__ import annotations

from math import ceil, isqrt, sqrt
from typing import NamedTuple

import numpy as np

from sacmil.regions.lattice import Ints, Lattice

POINTS_PER_CELL = 9  # fewer mean more rows to visit, more mean coarser windows
MAX_PADDING = 6  # slots per point; unevenly spread points get larger cells
MAX_POINTS_IN_ONE_CELL = 500  # up to this number, searching all points at once is faster

UNBOUNDED = 1 << 30  # farther than any two points are apart
REMOVED = -1  # below every key
TAKEN = 1 << 62  # above every key, and with a key added still within int64

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


class DistanceField:
    """The squared distance of every point to its nearest centre; finds the largest quickly.

    Stored as keys with n - index for ties: the largest key belongs to the farthest point, among
    equals to the lowest index. Maxima of rows of cells avoid a search over all points.
    """

    def __init__(self, lattice: Lattice) -> None:
        self.lattice = lattice
        self.count = len(lattice.x)
        points = np.arange(self.count)
        self.grid = PointGrid(lattice, points, self.count - points, empty=0)
        # Without centres all points are equally far, beyond any possible distance.
        self.values = np.full(self.grid.weights.shape, REMOVED, dtype=np.int64)
        self.flat = self.values.reshape(-1)
        self.flat[self.grid.slot_of] = lattice.key_bound + self.count - points
        self.row_maxima = self.values.max(axis=1)

    def find_farthest(self) -> tuple[int, int]:
        """Return the point farthest from all centres, and its squared distance to them."""
        largest = self.row_maxima[self.row_maxima.argmax()]  # faster than max()
        distance, tie = divmod(int(largest), self.lattice.base)
        return self.count - tie, distance

    def remove(self, points: Ints | int) -> None:
        """Exclude points; takes effect once a centre is added that reaches them."""
        self.flat[self.grid.slot_of[points]] = REMOVED

    def add_center(self, center: int, squared_radius: int) -> None:
        """Update all distances within a radius of a new centre."""
        x, y = self.lattice.get_position(center)
        window, _ = self.grid.window(x, y, isqrt(squared_radius))
        values = self.values[window]
        np.minimum(values, self.grid.keys(x, y, window), out=values)
        rows = window[0]
        np.maximum.reduce(self.values[rows], axis=1, out=self.row_maxima[rows])


def sample_farthest_points(lattice: Lattice, count: int) -> Ints:
    """Return the first points of farthest-point sampling from canonical point 0."""
    field = DistanceField(lattice)
    centers = []
    for _ in range(count):
        # No point is farther from its centre than this one, so points beyond that distance
        # already have a nearer centre.
        centre, far = field.find_farthest()
        field.remove(centre)
        field.add_center(centre, far)
        centers.append(centre)
    return np.array(centers)


class FreePoints:
    """Free points, in a grid that is rebuilt once three quarters of its points are taken."""

    def __init__(self, lattice: Lattice) -> None:
        self.lattice = lattice
        self.free = np.ones(len(lattice.x), dtype=np.bool_)
        self._build_grid(np.arange(len(lattice.x)))

    def _build_grid(self, points: Ints) -> None:
        self.grid = PointGrid(self.lattice, points, points, empty=TAKEN)
        self.weights = self.grid.weights.reshape(-1)
        self.remaining = self.grid_size = len(points)
        self.radius = self.grid.side

    def remove(self, points: Ints) -> None:
        """Mark points as taken."""
        self.free[points] = False
        self.weights[self.grid.slot_of[points]] += TAKEN
        self.remaining -= len(points)
        if 0 < self.remaining < self.grid_size / 4:
            self._build_grid(np.flatnonzero(self.free))

    def take_nearest(self, center: int, count: int) -> tuple[Ints, int]:
        """Remove and return the free points nearest to a centre, ties to the lower index.

        Args:
            center: A point, which is not free itself.
            count: Number of points; fewer are returned only if no more are left.

        Returns:
            The points, and the squared distance of the farthest of them.
        """
        count = min(count, self.remaining)
        if count == 0:
            return np.empty(0, dtype=np.int64), 0
        keys, distance = self._find_nearest(center, count)
        points = keys % self.lattice.base
        self.remove(points)
        return points, distance

    def _find_nearest(self, center: int, count: int) -> tuple[Ints, int]:
        """Return keys of the nearest free points, from a window that is known to hold them."""
        x, y = self.lattice.get_position(center)
        radius = self.radius
        while True:
            window, outside = self.grid.window(x, y, radius)
            keys = self.grid.keys(x, y, window).reshape(-1)
            distance = self._partition_nearest(keys, count)
            if distance is None:
                radius *= 2
            elif distance < outside * outside:
                # The next centre probably has neighbours of similar density.
                self.radius = isqrt(distance) + 1
                return keys[:count], distance
            else:
                radius = isqrt(distance) + 1

    def _partition_nearest(self, keys: Ints, count: int) -> int | None:
        """Move the smallest keys to the front; return their largest squared distance, or None if
        not all are free."""
        if len(keys) < count:
            return None
        keys.partition(count - 1)
        last = int(keys[count - 1])
        return None if last >= TAKEN else last // self.lattice.base
