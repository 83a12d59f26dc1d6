"""The smallest square that holds a bag row by row, padded with its first instances."""

from __future__ import annotations

import math

import numpy as np

from sacmil.plans._registry import Array, Plan


def make(coords: Array, features: Array | None = None) -> Plan:
    """Return cells (side, side), the instance in each cell.

    >>> make(np.zeros((5, 2)))["cells"].tolist()
    [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    """
    n = len(coords)
    side = math.isqrt(n - 1) + 1
    return {"cells": np.arange(side * side).reshape(side, side) % n}
