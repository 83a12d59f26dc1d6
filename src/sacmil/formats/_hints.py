"""Hints: facts about a bag that the caller gives because its file does not store them."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.errors import BagError, FormatError
from sacmil.units import Level0Px, MicronsPerPixel

_NUMERIC_HINTS = ("patch_size", "mpp", "stride")
_TOLERANCE = 5e-3  # people round what they type
_WHOLE_PIXEL_TOLERANCE = 1 / 64
"""Coordinates this close to whole pixels were whole before they were stored as float32 µm."""


@dataclass(frozen=True, kw_only=True)
class Hints:
    """Facts from the caller; a file that contradicts them is rejected."""

    patch_size: float | None = None
    """Side of a tile in level-0 pixels."""
    mpp: float | None = None
    """Microns per level-0 pixel."""
    stride: float | None = None
    """Distance between neighbouring tiles in level-0 pixels, where they overlap or leave gaps."""
    coords: Path | None = None
    """A file of coordinates, or a folder with one file per slide."""

    def __post_init__(self) -> None:
        for name in _NUMERIC_HINTS:
            value = getattr(self, name)
            if value is not None and not _is_positive(value):
                raise FormatError(f"{name}={value!r}; expected a number above zero")
        if self.mpp is not None and not 0.05 <= self.mpp <= 20:
            raise FormatError(f"mpp={self.mpp:g}; expected 0.05 to 20 µm per level-0 pixel")

    def find_coords_file(self, names: Iterable[str]) -> Path | None:
        """Return the given coordinate file; in a folder, the first of these names."""
        if self.coords is None or self.coords.is_file():
            return self.coords
        files = [self.coords / name for name in names]
        found = next((file for file in files if file.is_file()), None)
        if found is None:
            expected = " or ".join(file.name for file in files)
            missing = "there is no such file, and no folder with"
            reason = "the folder does not hold" if self.coords.is_dir() else missing
            raise FormatError(
                f"{self.coords}: {reason} {expected}; expected this slide's coordinates"
            )
        return found

    def reject_coords(self, path: Path) -> None:
        """Raise an error if coords is given for a layout that stores its own coordinates."""
        if self.coords is not None:
            raise FormatError(
                f"{path}: holds its own coordinates; leave `coords` out, it is for files "
                "without coordinates"
            )


def make_no_coords_error(path: Path, missing: str) -> FormatError:
    """Return the error for features without coordinates, and which files do not exist."""
    return FormatError(
        f"{path}: holds features without coordinates, and {missing}; give the file or folder of "
        "coordinates by `coords`"
    )


def apply_hints(bag: Bag, hints: Hints) -> Bag:
    """Return the bag with its unknown values filled from the hints; known ones must agree."""
    unknown = {}
    for name in _NUMERIC_HINTS:
        found, given = getattr(bag, name), getattr(hints, name)
        if found is None and given is not None:
            unknown[name] = given
        elif given is not None and not math.isclose(found, given, rel_tol=_TOLERANCE):
            raise BagError(
                f"{name} is {found:g} in the file but {given:g} was given; leave `{name}` "
                "out, or correct it"
            )
    return replace(bag, **unknown) if unknown else bag


def convert_to_level0(
    path: Path, coords: npt.NDArray[Any], unit_um: float, tile_um: float, hints: Hints, mpp: float
) -> tuple[npt.NDArray[np.float64], Level0Px, MicronsPerPixel]:
    """Convert to level-0 pixels if the hints give the slide's resolution, else to tile pixels.

    The results are the third to fifth argument of Bag: coordinates, patch size, mpp.

    Args:
        path: of the file, for an error.
        coords: upper left corners.
        unit_um: µm per unit of the coordinates.
        tile_um: side of a tile in µm.
        hints: may give the slide's µm per pixel, or the patch size, from which it follows.
        mpp: the slide's µm per pixel if the hints do not give it.
    """
    if coords.dtype.kind not in "iuf":
        raise FormatError(f"{path}: coordinates are {coords.dtype}; expected numbers")
    mpp = hints.mpp or (tile_um / hints.patch_size if hints.patch_size else mpp)
    scaled, patch_size = coords.astype(np.float64) * unit_um / mpp, tile_um / mpp
    is_finite = scaled.size and np.isfinite(scaled).all()
    if is_finite and (abs(scaled - scaled.round()) < _WHOLE_PIXEL_TOLERANCE).all():
        scaled = scaled.round()
    if abs(patch_size - round(patch_size)) < 1e-6 * patch_size:
        patch_size = round(patch_size)
    return scaled, Level0Px(patch_size), MicronsPerPixel(mpp)


def _is_positive(value: object) -> bool:
    return isinstance(value, numbers.Real) and 0 < float(value) < float("inf")
