"""A bag laid out row by row on a square that is divided into square regions (R2T-MIL)."""

from __future__ import annotations

import math

import numpy as np

from sacmil.plans._registry import Array, Plan


def make(coords: Array, features: Array | None = None, **grids: int) -> Plan:
    """Return for each grid NAME (grid * grid, P), the instances of each region, and NAME_at (N,).

    N in NAME is an empty cell after the last instance. NAME_at is the cell of each instance.

    >>> make(np.zeros((3, 2)), halves=2)["halves"].tolist()
    [[0], [1], [2], [3]]

    Args:
        coords: (N, 2); only their number is used.
        features: not used.
        grids: regions on a side, by name.
    """
    plan = {}
    for name, grid in grids.items():
        plan[name] = _make_regions(len(coords), grid)
        plan[f"{name}_at"] = np.argsort(plan[name], axis=None, kind="stable")[: len(coords)]
    return plan


def _make_regions(n: int, grid: int) -> Array:
    side = -(-(math.isqrt(n - 1) + 1) // grid)  # of a region
    cells = np.minimum(np.arange((grid * side) ** 2), n)
    return cells.reshape(grid, side, grid, side).swapaxes(1, 2).reshape(grid**2, -1)
