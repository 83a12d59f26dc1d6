"""A bag laid out row by row on a square, the square cut into grids of square regions (R2T-MIL)."""

from __future__ import annotations

import math

import numpy as np

from sacmil.plans._registry import Array, Plan


def make(coords: Array, features: Array | None = None, **grids: int) -> Plan:
    """For each named grid: NAME (grid * grid, P), the instances of each region; NAME_at (N,).

    N in NAME is a cell after the last instance; NAME_at says where among all cells of NAME each
    instance stands.

    >>> make(np.zeros((3, 2)), halves=2)["halves"].tolist()
    [[0], [1], [2], [3]]

    Args:
        coords: (N, 2); only their number counts.
        features: not looked at.
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
