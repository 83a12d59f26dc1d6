"""Arranges coordinates into regions of k neighbours, each sorted from its center outwards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sacmil.errors import OptionError, suggest_names
from sacmil.regions.bisection import bisect_points, find_middle_points
from sacmil.regions.farthest import DistanceField, sample_farthest_points
from sacmil.regions.free_points import FreePoints
from sacmil.regions.hilbert import hilbert_index
from sacmil.regions.lattice import Ints, Lattice, make_lattice

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
    members = bisect_points(points, k)
    return Regions(members, find_middle_points(points, members, k))


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
