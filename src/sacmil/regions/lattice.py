"""Coordinates as exact whole numbers in one canonical order, independent of the file's order."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sacmil.errors import BagError

Ints: TypeAlias = NDArray[np.int64]

COORDINATE_BITS = 20
INDEX_BITS = 21
MAX_INSTANCES = 2**INDEX_BITS
FRACTION_BITS = 12
SPAN_BITS = 48  # with the fraction of a float still within int64


class Lattice(NamedTuple):
    """The points of one slide in canonical order: by x, then y, then order in the file.

    Coordinates are below 2^20 and points at most 2^21, so that a squared distance and a
    canonical index fit one int64 key, ``distance * base + index``.
    """

    x: Ints
    y: Ints
    file_index: Ints

    @property
    def base(self) -> int:
        """Factor of the distance in a key."""
        return len(self.x) + 1

    @property
    def key_bound(self) -> int:
        """A key above that of any possible distance, without an index."""
        return (int(self.x.max()) ** 2 + int(self.y.max()) ** 2 + 1) * self.base

    def get_position(self, point: int) -> tuple[int, int]:
        """Return the coordinates of one point."""
        return int(self.x[point]), int(self.y[point])

    def keys(self, points: Ints, centers: Ints) -> Ints:
        """Return keys that sort points by squared distance to their centre, then by index."""
        dx, dy = self.x[points] - self.x[centers], self.y[points] - self.y[centers]
        return (dx * dx + dy * dy) * self.base + points


def make_lattice(coords: ArrayLike) -> Lattice:
    """Convert coordinates to the coarsest lattice that holds them exactly.

    The smallest x and y become 0. Whole numbers stay exact. Other floats are rounded to 1/4096,
    so float32 and float64 copies of one patch grid agree. If all lie within one unit, they are
    rounded to a power of two that spreads them over about 2^20 steps. Then the steps are divided
    by their greatest common divisor. A lattice that still spans 2^20 steps is made coarser by a
    power of two.

    Args:
        coords: One (x, y) row per instance, in level-0 pixels or in patches.

    Raises:
        BagError: The array is not (N, 2), is empty, too long, too wide, or not finite.
    """
    axes = _check_and_split_axes(coords)
    steps = _to_lattice_steps(axes)
    steps //= max(1, int(np.gcd.reduce(steps, axis=None)))
    steps >>= max(0, int(steps.max()).bit_length() - COORDINATE_BITS)
    order = _canonical_order(steps, axes)
    return Lattice(steps[0, order], steps[1, order], order)


def _canonical_order(steps: Ints, axes: NDArray[Any]) -> Ints:
    x, y = steps[0], steps[1]
    # One sort of packed integers is several times faster than a lexsort.
    packed: Ints = (((x << COORDINATE_BITS) | y) << INDEX_BITS) | np.arange(len(x))
    packed.sort()
    if np.all(np.diff(packed >> INDEX_BITS)):
        return unpack_index(packed)
    # Points at one position may have been rounded to it: their exact coordinates decide,
    # so that the result does not depend on the order of the file.
    order: Ints = np.lexsort((axes[1], axes[0], y, x))
    return order


def unpack_index(packed: Ints) -> Ints:
    """Return the index in the lowest bits of packed integers."""
    index: Ints = packed & (MAX_INSTANCES - 1)
    return index


def _to_lattice_steps(axes: NDArray[Any]) -> Ints:
    """Return coordinates above their minimum, in whole lattice steps."""
    span = max(int(axis.max()) - int(axis.min()) for axis in axes)
    if span >= 1 << SPAN_BITS:
        raise BagError(
            f"coordinates span about 2^{span.bit_length()}; expected level-0 pixels or patches "
            f"that span less than 2^{SPAN_BITS}: check the file for outliers"
        )
    above: NDArray[Any] = axes - axes.min(axis=1, keepdims=True)
    if axes.dtype.kind in "iu":
        return above.astype(np.int64)
    steps: NDArray[np.float64] = np.ldexp(above, _fraction_bits(float(above.max())))
    return np.rint(steps).astype(np.int64)


def _fraction_bits(span: float) -> int:
    """Return the number of binary places to keep of coordinates with this span."""
    if span == 0 or span >= 1:
        return FRACTION_BITS
    return COORDINATE_BITS - math.frexp(span)[1]


def _check_and_split_axes(coords: ArrayLike) -> NDArray[Any]:
    """Check coordinates; return x and y as rows of float64, int64 or uint64."""
    try:
        array = np.asarray(coords)
    except ValueError as error:
        raise BagError(
            f"coordinates are not an array ({error}); expected shape (N, 2): give one (x, y) row "
            "per instance"
        ) from error
    if array.dtype.kind not in "iuf":
        raise BagError(
            f"coordinates are of type {array.dtype}; expected whole numbers or floats: "
            "convert them first"
        )
    if array.ndim != 2 or array.shape[1] != 2:
        raise BagError(
            f"coordinates have shape {array.shape}; expected (N, 2): give one (x, y) row "
            "per instance"
        )
    if not 1 <= len(array) <= MAX_INSTANCES:
        raise BagError(
            f"coordinates of {len(array):,} instances; expected 1 to {MAX_INSTANCES:,}: "
            "leave out empty slides, split larger ones"
        )
    kind = {"f": np.float64, "i": np.int64, "u": np.uint64}[array.dtype.kind]
    axes = np.ascontiguousarray(array.T, dtype=kind)
    bad = int(np.count_nonzero(~np.isfinite(axes).all(axis=0)))
    if bad:
        raise BagError(
            f"coordinates of {bad:,} instances are NaN or infinite; expected finite numbers: "
            "drop those instances or repair the file"
        )
    return axes
