"""Square regions of neighbouring patches, and the position of each patch in its region (HIPT)."""

from __future__ import annotations

import numpy as np

from sacmil.plans._registry import Array, Plan


def make(coords: Array, features: Array | None = None, *, side: int, apart: bool = False) -> Plan:
    """Return slots (N,): region * positions per region + position; regions by row, then column.

    Patches in the same slot count as one of M occupied slots. Unless ``apart``, the plan also has
    which (N,), the occupied slot of each patch; places (M,), its position in its region; and table
    (regions, T), the occupied slots of each region, padded with M.

    Args:
        coords: (N, 2), in patch units.
        features: not used.
        side: patches on a side of a region.
        apart: whether every instance is a region of its own.
    """
    if apart:
        return {"slots": np.arange(len(coords), dtype=np.int64) * side**2}
    c = np.asarray(coords, np.float64)
    # Rounded first: 2.9999999 is a 3 with the error of the division by the patch size.
    column, row = np.floor(np.round(c - c.min(0), 3)).astype(np.int64).T
    regions_per_row = column.max() // side + 1
    _, region = np.unique(row // side * regions_per_row + column // side, return_inverse=True)
    slots = region * side**2 + row % side * side + column % side
    occupied, which = np.unique(slots, return_inverse=True)
    region, position = np.divmod(occupied, side**2)
    return {"slots": slots, "which": which, "places": position, "table": _make_region_table(region)}


def _make_region_table(region: Array) -> Array:
    """Return the rows of each region, (regions, T), padded with M; ``region`` (M,) is sorted."""
    sizes = np.bincount(region)
    rows = np.arange(len(region))
    table = np.full((len(sizes), sizes.max()), len(region))
    table[region, rows - (np.cumsum(sizes) - sizes)[region]] = rows
    return table
