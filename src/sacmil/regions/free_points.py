"""The points not yet in a region; finds those nearest to a centre quickly."""

from __future__ import annotations

from math import isqrt

import numpy as np

from sacmil.regions.grid import PointGrid
from sacmil.regions.lattice import Ints, Lattice

TAKEN = 1 << 62  # above every key, and with a key added still within int64


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
