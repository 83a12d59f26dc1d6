"""Farthest-point sampling that updates only the points a new centre can affect."""

from __future__ import annotations

from math import isqrt

import numpy as np

from sacmil.regions.grid import PointGrid
from sacmil.regions.lattice import Ints, Lattice

REMOVED = -1  # below every key


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
