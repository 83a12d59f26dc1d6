"""Types for three units of length: microns, pixels of the scan, pixels of a tile.

A tile of 256 pixels cut at 0.5 µm per pixel from a slide scanned at 0.25 covers 128 microns and
512 level-0 pixels. Coordinates are always level-0 pixels; a model sees them in patch units
(level-0 pixels divided by the tile's side in level-0 pixels).
"""

from __future__ import annotations

from typing import NewType

Microns = NewType("Microns", float)
"""A length on the glass."""

Level0Px = NewType("Level0Px", float)
"""Pixels of the slide as scanned (its finest level): the unit of every coordinate on disk."""

TilePx = NewType("TilePx", int)
"""Pixels of a tile as an encoder sees it, after any resampling."""

MicronsPerPixel = NewType("MicronsPerPixel", float)
"""Resolution; of level 0 unless a name says otherwise."""


def to_microns(length: Level0Px, mpp: MicronsPerPixel) -> Microns:
    """Convert level-0 pixels to microns.

    >>> to_microns(Level0Px(512), MicronsPerPixel(0.25))
    128.0
    """
    return Microns(length * mpp)


def to_level0(length: Microns, mpp: MicronsPerPixel) -> Level0Px:
    """Convert microns to level-0 pixels.

    >>> to_level0(Microns(128.0), MicronsPerPixel(0.25))
    512.0
    """
    return Level0Px(length / mpp)


# Upper bounds of µm per pixel for the nominal objective powers, as TRIDENT sorts them.
_OBJECTIVE_BOUNDS = ((0.16, 80), (0.2, 60), (0.3, 40), (0.6, 20), (1.2, 10), (2.4, 5))


def nominal_magnification(mpp: MicronsPerPixel) -> int | None:
    """Return the nominal objective power of this resolution, or None below 5x.

    >>> nominal_magnification(MicronsPerPixel(0.25))
    40
    """
    return next((power for bound, power in _OBJECTIVE_BOUNDS if mpp < bound), None)
