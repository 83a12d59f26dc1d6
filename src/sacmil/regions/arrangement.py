"""Arranges coordinates into regions of k neighbours, each sorted from its center outwards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sacmil.errors import OptionError, suggest_names
from sacmil.regions.grid import DistanceField, FreePoints, sample_farthest_points
from sacmil.regions.lattice import (
    COORDINATE_BITS,
    INDEX_BITS,
    Ints,
    Lattice,
    make_lattice,
    unpack_index,
)

ORDERS = ("fps", "hilbert")


class Regions(NamedTuple):
    """Canonical indices of all points, region by region, and of the center of each region."""

    members: Ints
    centers: Ints


def arrange(coords: ArrayLike, k: int, centers: str = "fps", order: str = "fps") -> Ints:
    """Return the permutation that puts a bag's instances into regions of k neighbours.

    A pure function of the coordinates. The order of the file and the origin of the slide do not
    matter. For tiles that do not overlap, pixels and patches give the same result. `make_lattice`
    describes the precision of coordinates. Ties go to the lower x, then y, then file order. The
    last region holds the remainder and stays last.

    Args:
        coords: One (x, y) row per instance, in level-0 pixels or in patches.
        k: Instances in a region.
        centers: How regions come about. "fps": all centers by farthest-point sampling, then
            each takes its nearest free instances; "fps_free": the next center is the free
            instance farthest from the centers so far; "peel": the free instance farthest from
            the slide's centroid; "kd": bisection along the longer axis.
        order: "fps" keeps regions as they were made, "hilbert" follows a Hilbert curve
            through their centers.

    Raises:
        BagError: The coordinates are not a finite (N, 2) array.
        OptionError: k is not a positive whole number, or an option is unknown.
    """
    _check_option("centers", centers, CENTERS)
    _check_option("order", order, ORDERS)
    _check_size(k)
    points = make_lattice(coords)
    k = min(int(k), len(points.x))  # one region, whatever the rule
    sequence = _sort_by_distance(points, _MAKERS[centers](points, k), k)
    if order == "hilbert":
        sequence = _sort_along_hilbert(points, sequence, k)
    return points.file_index[sequence]


def _make_fps_regions(points: Lattice, k: int) -> Regions:
    """Choose all centers first; then each takes its nearest free points."""
    centers = sample_farthest_points(points, -(-len(points.x) // k))
    free_points = FreePoints(points)
    free_points.remove(centers)
    others = [free_points.take_nearest(center, k - 1)[0] for center in centers.tolist()]
    return _join_regions(centers, others, k)


def _make_fps_free_regions(points: Lattice, k: int) -> Regions:
    """Take as next center the free point farthest from the centers so far."""
    field, free_points = DistanceField(points), FreePoints(points)
    centers, others = [], []
    while free_points.remaining:
        center, far = field.find_farthest()
        free_points.remove(np.array([center]))
        members, reach = free_points.take_nearest(center, k - 1)
        field.remove(center)
        field.remove(members)
        field.add_center(center, max(far, reach))
        centers.append(center)
        others.append(members)
    return _join_regions(np.array(centers), others, k)


def _make_peel_regions(points: Lattice, k: int) -> Regions:
    """Take as next center the free point farthest from the slide's centroid."""
    dx, dy = (axis - int(axis.sum()) / len(axis) for axis in (points.x, points.y))
    free_points = FreePoints(points)
    centers, others = [], []
    for center in np.argsort(-(dx * dx + dy * dy), kind="stable").tolist():
        if free_points.free[center]:
            free_points.remove(np.array([center]))
            centers.append(center)
            others.append(free_points.take_nearest(center, k - 1)[0])
    return _join_regions(np.array(centers), others, k)


def _make_kd_regions(points: Lattice, k: int) -> Regions:
    """Return the leaves of a bisection."""
    members = _bisect_points(points, k)
    return Regions(members, _find_middle_points(points, members, k))


def _bisect_points(lattice: Lattice, k: int) -> Ints:
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


def _find_middle_points(lattice: Lattice, sequence: Ints, k: int) -> Ints:
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


def _join_regions(centers: Ints, others: list[Ints], k: int) -> Regions:
    neighbors = np.concatenate(others)
    members = np.empty(len(centers) + len(neighbors), dtype=np.int64)
    first = np.arange(len(members)) % k == 0
    members[first], members[~first] = centers, neighbors
    return Regions(members, centers)


def _sort_by_distance(points: Lattice, regions: Regions, k: int) -> Ints:
    """Sort every region: its center first, then its members from near to far.

    A center has the lowest index among points at its position, so sorting puts it first.
    """
    members = regions.members
    center_of = np.repeat(regions.centers, k)[: len(members)]
    keys = np.full(k * len(regions.centers), np.iinfo(np.int64).max)
    keys[: len(members)] = points.keys(members, center_of)
    keys.reshape(-1, k).sort(axis=1)
    return keys[: len(members)] % points.base


def _sort_along_hilbert(points: Lattice, sequence: Ints, k: int) -> Ints:
    """Sort full regions in the order in which a Hilbert curve passes their centers."""
    whole = len(sequence) // k * k
    centers = sequence[:whole:k]
    bits = max(int(points.x.max()), int(points.y.max())).bit_length()
    along = hilbert_index(points.x[centers], points.y[centers], bits)
    rows = sequence[:whole].reshape(-1, k)[np.argsort(along, kind="stable")]
    return np.concatenate([rows.reshape(-1), sequence[whole:]])


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


def _check_option(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"{option}={value!r} is not known: {suggest_names(value, known)}")


def _check_size(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise OptionError(f"k={k!r}; expected a whole number of instances in a region, at least 1")


_MAKERS = {
    "fps": _make_fps_regions,
    "fps_free": _make_fps_free_regions,
    "peel": _make_peel_regions,
    "kd": _make_kd_regions,
}
CENTERS = tuple(_MAKERS)
