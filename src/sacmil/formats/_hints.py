"""What a file does not say about itself, its owner may: hints to the readers of layouts."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from sacmil.bag import Bag
from sacmil.errors import BagError, FormatError
from sacmil.units import Level0Px, MicronsPerPixel

_NUMERIC_HINTS = ("patch_size", "mpp", "stride")
_TOLERANCE = 5e-3  # people round what they type


@dataclass(frozen=True, kw_only=True)
class Hints:
    """What the caller knows; a file that says otherwise is refused."""

    patch_size: Level0Px | None = None
    """Side of a tile in level-0 pixels."""
    mpp: MicronsPerPixel | None = None
    """Microns per level-0 pixel."""
    stride: Level0Px | None = None
    """Distance between neighbouring tiles in level-0 pixels, where they overlap or leave gaps."""
    coords: Path | None = None
    """A file of coordinates, or the folder where there is one per slide."""

    def __post_init__(self) -> None:
        for name in _NUMERIC_HINTS:
            value = getattr(self, name)
            if value is not None and not _is_positive(value):
                raise FormatError(f"{name}={value!r}; expected a number above zero")
        if self.mpp is not None and not 0.05 <= self.mpp <= 20:
            raise FormatError(f"mpp={self.mpp:g}; expected 0.05 to 20 µm per level-0 pixel")

    def find_coords_file(self, names: Iterable[str]) -> Path | None:
        """The file of coordinates that was given, looked up by these names in a folder."""
        if self.coords is None or self.coords.is_file():
            return self.coords
        names = list(names)
        found = next((self.coords / name for name in names if (self.coords / name).is_file()), None)
        if found is None:
            what = (
                "the folder does not hold" if self.coords.is_dir() else "there is no such file or"
            )
            raise FormatError(
                f"{self.coords}: {what} {' or '.join(names)}; expected this slide's coordinates"
            )
        return found

    def reject_coords(self, path: Path) -> None:
        """For layouts whose files hold their coordinates themselves."""
        if self.coords is not None:
            raise FormatError(
                f"{path}: holds its own coordinates; leave coords (--coords) out, it is for files "
                "without"
            )


def apply_hints(bag: Bag, hints: Hints) -> Bag:
    """The bag with what only the hints know; what both know has to be the same."""
    unknown = {}
    for name in _NUMERIC_HINTS:
        found, given = getattr(bag, name), getattr(hints, name)
        if found is None and given is not None:
            unknown[name] = given
        elif given is not None and not math.isclose(found, given, rel_tol=_TOLERANCE):
            option = f"{name} (--{name.replace('_', '-')})"
            raise BagError(
                f"{name} is {found:g} by the file and {given:g} by your call; leave {option} out, "
                "or correct it"
            )
    return replace(bag, **unknown) if unknown else bag


def _is_positive(value: object) -> bool:
    return isinstance(value, numbers.Real) and 0 < float(value) < float("inf")
