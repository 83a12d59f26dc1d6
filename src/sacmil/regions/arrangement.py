"""Coordinates in, permutation out: regions of k neighbours, each from its centre outwards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sacmil.errors import OptionError, suggestion
from sacmil.regions.bisection import bisected, middle_points
from sacmil.regions.farthest import Field, farthest_points
from sacmil.regions.hilbert import hilbert_index
from sacmil.regions.lattice import Ints, Lattice, lattice
from sacmil.regions.supply import Supply

ORDERS = ("fps", "hilbert")


class Regions(NamedTuple):
    """Canonical indices: all points, k after k, and the centre of each k."""

    members: Ints
    centres: Ints


def arrange(coords: ArrayLike, k: int, centres: str = "fps", order: str = "fps") -> Ints:
    """The permutation that puts a bag's instances into regions of k neighbours.

    A pure function of the coordinates: the sequence of coordinates it leads to is the same
    however the file lists them and wherever the slide begins, and for tiles that do not overlap
    in pixels as in patches; `lattice` says how exactly coordinates are taken. Ties go to the
    lower x, then y, then file order. The last region holds what k leaves over and stays last.

    Args:
        coords: One (x, y) row per instance, in level-0 pixels or in patches.
        k: Instances in a region.
        centres: How regions come about. "fps": all centres by farthest-point sampling, then
            each takes its nearest free instances; "fps_free": the next centre is the free
            instance farthest from the centres so far; "peel": the free instance farthest from
            the slide's centroid; "kd": bisection along the longer axis.
        order: "fps" keeps regions as they were made, "hilbert" follows a Hilbert curve
            through their centres.

    Raises:
        BagError: The coordinates are not a finite (N, 2) array.
        OptionError: k is not a positive whole number, or an option is unknown.
    """
    _check_option("centres", centres, CENTRES)
    _check_option("order", order, ORDERS)
    _check_size(k)
    points = lattice(coords)
    k = min(int(k), len(points.x))  # one region, whatever the rule
    sequence = _by_distance(points, _MAKERS[centres](points, k), k)
    if order == "hilbert":
        sequence = _along_hilbert(points, sequence, k)
    return points.file_index[sequence]


def _all_farthest(points: Lattice, k: int) -> Regions:
    """All centres are reserved before the first of them takes its neighbours."""
    centres = farthest_points(points, -(-len(points.x) // k))
    supply = Supply(points)
    supply.remove(centres)
    others = [supply.take(centre, k - 1)[0] for centre in centres.tolist()]
    return _regions(centres, others, k)


def _free_farthest(points: Lattice, k: int) -> Regions:
    """The next centre is the free point farthest from the centres so far."""
    field, supply = Field(points), Supply(points)
    centres, others = [], []
    while supply.left:
        centre, far = field.farthest()
        supply.remove(np.array([centre]))
        members, reach = supply.take(centre, k - 1)
        field.remove(centre)
        field.remove(members)
        field.add_centre(centre, max(far, reach))
        centres.append(centre)
        others.append(members)
    return _regions(np.array(centres), others, k)


def _peeled(points: Lattice, k: int) -> Regions:
    """The next centre is the free point farthest from the slide's centroid."""
    dx, dy = (axis - int(axis.sum()) / len(axis) for axis in (points.x, points.y))
    supply = Supply(points)
    centres, others = [], []
    for centre in np.argsort(-(dx * dx + dy * dy), kind="stable").tolist():
        if supply.free[centre]:
            supply.remove(np.array([centre]))
            centres.append(centre)
            others.append(supply.take(centre, k - 1)[0])
    return _regions(np.array(centres), others, k)


def _bisected(points: Lattice, k: int) -> Regions:
    """The leaves of a bisection."""
    members = bisected(points, k)
    return Regions(members, middle_points(points, members, k))


def _regions(centres: Ints, others: list[Ints], k: int) -> Regions:
    behind = np.concatenate(others)
    members = np.empty(len(centres) + len(behind), dtype=np.int64)
    first = np.arange(len(members)) % k == 0
    members[first], members[~first] = centres, behind
    return Regions(members, centres)


def _by_distance(points: Lattice, regions: Regions, k: int) -> Ints:
    """Every region's centre first, then its members from near to far.

    A centre has the lowest index of those that share its place, so sorting puts it first.
    """
    members = regions.members
    centre_of = np.repeat(regions.centres, k)[: len(members)]
    keys = np.full(k * len(regions.centres), np.iinfo(np.int64).max)
    keys[: len(members)] = points.keys(members, centre_of)
    keys.reshape(-1, k).sort(axis=1)
    return keys[: len(members)] % points.base


def _along_hilbert(points: Lattice, sequence: Ints, k: int) -> Ints:
    """Full regions in the order in which a Hilbert curve meets their centres."""
    whole = len(sequence) // k * k
    centres = sequence[:whole:k]
    bits = max(int(points.x.max()), int(points.y.max())).bit_length()
    along = hilbert_index(points.x[centres], points.y[centres], bits)
    rows = sequence[:whole].reshape(-1, k)[np.argsort(along, kind="stable")]
    return np.concatenate([rows.reshape(-1), sequence[whole:]])


def _check_option(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(f"{option}={value!r} is not known: {suggestion(value, known)}")


def _check_size(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise OptionError(f"k={k!r}, expected a whole number of instances in a region, at least 1")


_MAKERS = {
    "fps": _all_farthest,
    "fps_free": _free_farthest,
    "peel": _peeled,
    "kd": _bisected,
}
CENTRES = tuple(_MAKERS)
