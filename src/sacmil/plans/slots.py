"""Squares of neighbouring patches, and the place of each patch in its square (HIPT)."""

from __future__ import annotations

import numpy as np

from sacmil.plans._registry import Array, Plan


def make(coords: Array, features: Array | None = None, *, side: int, apart: bool = False) -> Plan:
    """slots (N,): region * places of a region + place; regions are numbered by row, then column.

    Patches of the same slot count as one. Unless all are apart, of these M: which (N,), the one
    each patch is; places (M,), its place in its region; table (regions, T), those of a region, M
    where it has fewer than the largest.

    Args:
        coords: (N, 2), in patch units.
        features: not looked at.
        side: patches on a side of a region.
        apart: whether every instance is a region of its own.
    """
    if apart:
        return {"slots": np.arange(len(coords), dtype=np.int64) * side**2}
    c = np.asarray(coords, np.float64)
    # Rounded first: 2.9999999 is a 3 that was divided by the size of a patch.
    column, row = np.floor(np.round(c - c.min(0), 3)).astype(np.int64).T
    in_a_row = column.max() // side + 1
    _, home = np.unique(row // side * in_a_row + column // side, return_inverse=True)
    slots = home * side**2 + row % side * side + column % side
    taken, which = np.unique(slots, return_inverse=True)
    region, place = np.divmod(taken, side**2)
    return {"slots": slots, "which": which, "places": place, "table": _make_region_table(region)}


def _make_region_table(region: Array) -> Array:
    """(regions, T), for each region the rows that have it as their home; home (M,) is sorted."""
    sizes = np.bincount(region)
    rows = np.arange(len(region))
    table = np.full((len(sizes), sizes.max()), len(region))
    table[region, rows - (np.cumsum(sizes) - sizes)[region]] = rows
    return table
