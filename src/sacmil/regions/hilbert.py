"""The Hilbert curve: a path through a square that keeps neighbours close."""

from __future__ import annotations

import numpy as np

from sacmil.regions.lattice import Ints


def hilbert_index(x: Ints, y: Ints, bits: int) -> Ints:
    """Return the position of each point along the curve through a 2^bits by 2^bits square."""
    x, y = x.copy(), y.copy()
    along = np.zeros_like(x)
    for bit in reversed(range(bits)):
        right, upper = (x >> bit) & 1, (y >> bit) & 1
        along = 4 * along + ((3 * right) ^ upper)
        # The lower quadrants hold a rotated curve: mirrored if right, then transposed.
        mirrored = (right == 1) & (upper == 0)
        x[mirrored] ^= (1 << bit) - 1
        y[mirrored] ^= (1 << bit) - 1
        x, y = np.where(upper == 0, (y, x), (x, y))
    return along
