"""Regions by recursive bisection of the slide along its longer axis."""

from __future__ import annotations

import numpy as np

from sacmil.regions.lattice import COORDINATE_BITS, INDEX_BITS, Ints, Lattice, unpack_index


def bisect_points(lattice: Lattice, k: int) -> Ints:
    """Return the points as runs of k, the leaves of the bisection; only the last may be shorter.

    All nodes of one depth are split at once. A node is one run of the sequence; it is split by
    sorting it along its longer axis.
    """
    sequence = np.arange(len(lattice.x))
    starts = np.zeros(1, dtype=np.int64)
    sizes = np.array([len(sequence)])
    while sizes.max() > k:
        sequence = _sort_along_axes(lattice, sequence, starts, sizes)
        cuts = (starts + _first_half_sizes(sizes, k))[sizes > k]
        starts = np.sort(np.concatenate([starts, cuts]))
        sizes = np.diff(starts, append=len(sequence))
    return sequence


def find_middle_points(lattice: Lattice, sequence: Ints, k: int) -> Ints:
    """Return the point nearest to the mean of each run of k, ties to the lower index."""
    starts = np.arange(0, len(sequence), k)
    sizes = np.diff(starts, append=len(sequence))
    distance = np.zeros(len(sequence))
    for coordinate in (lattice.x[sequence], lattice.y[sequence]):
        offset = coordinate - np.repeat(np.add.reduceat(coordinate, starts) / sizes, sizes)
        distance += offset * offset
    nearest = distance == np.repeat(np.minimum.reduceat(distance, starts), sizes)
    middles: Ints = np.minimum.reduceat(np.where(nearest, sequence, len(sequence)), starts)
    return middles


def _first_half_sizes(sizes: Ints, k: int) -> Ints:
    """Return the multiple of k^2 nearest to half a size, ties to the lower; of k in small nodes."""
    unit = np.where(sizes > k * k, k * k, k)
    units: Ints = -((unit - sizes) // (2 * unit))
    return unit * units


def _sort_along_axes(lattice: Lattice, sequence: Ints, starts: Ints, sizes: Ints) -> Ints:
    x, y = lattice.x[sequence], lattice.y[sequence]
    is_taller = _extent(y, starts) > _extent(x, starts)
    along = np.where(np.repeat(is_taller, sizes), y, x)
    node = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    # Node, coordinate and index fit one int64, which sorts faster than any lexsort.
    packed: Ints = (((node << COORDINATE_BITS) | along) << INDEX_BITS) | sequence
    packed.sort()
    return unpack_index(packed)


def _extent(coordinate: Ints, starts: Ints) -> Ints:
    extent: Ints = np.maximum.reduceat(coordinate, starts) - np.minimum.reduceat(coordinate, starts)
    return extent
