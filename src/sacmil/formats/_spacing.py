"""Check the distance between tiles against their size, to detect lengths in the wrong unit.

The coordinates show the distance between neighbouring tiles. It can be two or four times the stated
patch size, or µm per pixel times it. Then pixels of the scan were confused with pixels of a tile or
with microns. A bag is rejected only if nearly all of its tiles agree. Other unusual distances give
a warning. Tiles that lie on no grid are not checked.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.errors import BagError, BagWarning

_MIN_GAPS = 16
"""Gaps needed for a conclusion: fewer may be even multiples by chance."""
_MIN_AGREEMENT = 0.9
"""Share of the gaps that have to agree."""
_DOWNSAMPLE_FACTORS = (2, 4, 8, 16)
"""Usual factors by which tiles are downsampled before encoding, and pyramid levels differ."""


def check_spacing(bag: Bag) -> None:
    """Raise BagError if the patch size is clearly in another unit than the coordinates."""
    spacing = find_grid(bag.coords)
    if spacing is None:
        return
    expected = float(bag.stride or bag.patch_size)
    if abs(spacing - expected) <= _compute_tolerance(expected):
        _warn_of_centers(bag)
        return
    ratio = spacing / expected
    stated = f"stride {bag.stride:g}" if bag.stride else f"patch size {bag.patch_size:g}"
    found = f"{bag.slide_id}: tiles are {spacing:g} apart, {ratio:.3g} times the stated {stated}"
    fix_hint = f"if this distance is intended, give `stride={spacing:g}`"
    mistake = _explain_mistake(bag, ratio)
    if mistake:
        raise BagError(f"{found}; {mistake}; {fix_hint}")
    suspicion = _explain_unusual_spacing(bag, ratio)
    if suspicion:
        warnings.warn(f"{found}: {suspicion}; {fix_hint}", BagWarning, stacklevel=2)


def find_grid(coords: npt.NDArray[Any], min_gaps: int = _MIN_GAPS) -> float | None:
    """Return the spacing of the grid that most tiles lie on, in the unit of the coordinates.

    It is measured between neighbours in rows and columns; None if there is no grid.

    >>> find_grid(np.argwhere(np.ones((5, 5))) * 512)
    512.0
    """
    if coords.ndim != 2 or coords.shape[1] != 2 or coords.dtype.kind not in "iuf":
        return None  # also called with arrays that are not checked yet
    if not np.isfinite(coords).all():
        return None
    gaps = np.concatenate([_measure_gaps(coords, axis) for axis in (0, 1)])
    if len(gaps) < max(min_gaps, 1):
        return None
    low = float(np.quantile(gaps, 0.05, method="lower"))
    spacing = float(np.median(gaps[np.abs(gaps - low) <= _compute_tolerance(low)]))
    steps = gaps[gaps <= 6.5 * spacing] / spacing  # rounding errors add up over longer gaps
    errors = np.abs(steps - np.maximum(np.round(steps), 1))
    regular = errors <= _compute_tolerance(spacing) / spacing
    is_grid = len(steps) >= max(min_gaps, 1) and regular.mean() >= _MIN_AGREEMENT
    return spacing if is_grid else None


def describe_grid(coords: npt.NDArray[Any]) -> str:
    """Return the end of a sentence about a missing tile size: the distance between the tiles."""
    spacing = find_grid(coords)
    return f"; its tiles are {spacing:g} apart" if spacing else ""


def _measure_gaps(coords: npt.NDArray[Any], axis: int) -> npt.NDArray[np.float64]:
    """Return distances between successive tiles in a row (axis 0) or a column (axis 1)."""
    along, across = coords[:, axis], coords[:, 1 - axis]
    order = np.lexsort((along, across))
    steps = np.diff(along[order].astype(np.float64))
    in_line = np.diff(across[order].astype(np.float64)) == 0
    return np.asarray(steps[in_line & (steps > 0)])


def _compute_tolerance(length: float) -> float:
    """Return the rounding error of a length: whole pixels, and sizes given with two digits."""
    return max(0.04 * length, min(1.0, 0.25 * length))


def _explain_mistake(bag: Bag, ratio: float) -> str | None:
    """Return the common mistake that explains the ratio, and how to fix it.

    Tiles that overlap by half look like microns of a 0.5 µm scan, so that case is not reported.
    """
    size = ratio * float(bag.patch_size)
    if _has_micron_coords(bag, ratio) and abs(ratio - 0.5) > 0.01:
        return (
            f"the coordinates look like microns (µm per pixel is {bag.mpp:g}); expected level-0 "
            "pixels, divide them by µm per pixel"
        )
    if bag.stride in (None, bag.patch_size) and any(
        math.isclose(ratio, shrink, rel_tol=0.1) for shrink in _DOWNSAMPLE_FACTORS
    ):
        return (
            "the patch size looks like pixels of the encoded tile (patch_size) or microns; "
            f"expected level-0 pixels (patch_size_level0), try `patch_size={size:g}`"
        )
    return None


def _has_micron_coords(bag: Bag, ratio: float) -> bool:
    return bag.mpp is not None and bag.mpp < 0.9 and math.isclose(ratio, bag.mpp, rel_tol=0.01)


def _explain_unusual_spacing(bag: Bag, ratio: float) -> str | None:
    if _has_micron_coords(bag, ratio):
        return "the coordinates may be in microns"
    if ratio < 1 and bag.stride is None:
        return None  # an overlap that the file does not store
    return "patch size or coordinates may be in another unit than level-0 pixels"


def _warn_of_centers(bag: Bag) -> None:
    size = float(bag.patch_size)
    if (np.abs(bag.coords.astype(np.float64) % size - size / 2) <= min(0.5, 0.01 * size)).all():
        warnings.warn(
            f"{bag.slide_id}: every coordinate is half a patch off a multiple of the patch size "
            f"{size:g}; if these are centres, subtract half a patch: expected upper left corners",
            BagWarning,
            stacklevel=3,
        )
