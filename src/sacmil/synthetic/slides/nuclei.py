"""Nuclei: a few dozen of each kind, drawn once and stamped at each cell."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import ndimage

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NucleusKind:
    """The appearance of one kind of nucleus; lengths in pixels of half a micron."""

    length: float
    """Longer radius."""
    width: float
    """Shorter radius."""
    variation: float
    """Of both, as a share."""
    darkness: float
    """Haematoxylin, about 0 to 2."""
    chromatin: float
    """Contrast of the chromatin."""
    unevenness: float
    """Of the border."""
    nucleoli: int = 0


TUMOR = NucleusKind(
    length=10.5,
    width=8.2,
    variation=0.2,
    darkness=1.05,
    chromatin=0.5,
    unevenness=0.12,
    nucleoli=2,
)
GLAND = NucleusKind(
    length=9.5, width=4.8, variation=0.1, darkness=1.0, chromatin=0.2, unevenness=0.04
)
STROMA = NucleusKind(
    length=12.5, width=2.7, variation=0.25, darkness=0.95, chromatin=0.2, unevenness=0.1
)
LYMPHOCYTE = NucleusKind(
    length=5.6, width=5.2, variation=0.1, darkness=1.45, chromatin=0.3, unevenness=0.04
)


@dataclass(frozen=True, eq=False)
class NucleusStamps:
    """Nuclei of one kind, rotated in steps: (turns, variants, side, side)."""

    strength: Floats
    """Haematoxylin."""
    cover: Floats
    """1 inside the nucleus, 0 outside."""


@cache
def make_stamps(kind: NucleusKind, *, variants: int = 24, turns: int = 16) -> NucleusStamps:
    """Draw nuclei of a kind; the result is always the same.

    Args:
        kind: the appearance.
        variants: number of different nuclei.
        turns: number of directions of each, over half a circle.
    """
    random = np.random.default_rng(round(1000 * kind.length))
    radius = math.ceil(kind.length * (1 + 2.2 * kind.variation)) + 3
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1].astype(np.float32)
    angles = math.pi * np.arange(turns)[:, None, None] / turns
    along = np.cos(angles) * x + np.sin(angles) * y
    across = np.cos(angles) * y - np.sin(angles) * x
    nuclei = [_draw_nucleus(kind, along, across, random) for _ in range(variants)]
    strength, cover = (np.stack(layers, axis=1) for layers in zip(*nuclei, strict=True))
    return NucleusStamps(strength.astype(np.float32), cover.astype(np.float32))


def _draw_nucleus(
    kind: NucleusKind, along: Doubles, across: Doubles, random: np.random.Generator
) -> tuple[Doubles, Doubles]:
    scale = 1 + kind.variation * np.clip(random.normal(size=2), -2, 2)
    length, width = kind.length * scale[0], kind.width * scale[1]
    angle = np.arctan2(across / width, along / length)
    border = 1 + kind.unevenness * sum(
        random.normal() / wave * np.cos(wave * angle + random.uniform(0, 2 * math.pi))
        for wave in (2, 3, 4, 5)
    )
    distance = np.hypot(along / length, across / width) / border
    edge = min(length, width)
    cover = np.clip(0.5 + (1 - distance) * edge / 1.6, 0, 1)
    inside = 1 + kind.chromatin * _draw_chromatin(along.shape, random)
    rim = 0.25 * np.exp(-(((distance - 0.88) / 0.12) ** 2))
    strength = kind.darkness * random.uniform(0.85, 1.15) * (inside * 0.88 + rim)
    for _ in range(kind.nucleoli):
        center = 0.5 * random.uniform(-1, 1, 2) * (length, width)
        spot = np.exp(-((along - center[0]) ** 2 + (across - center[1]) ** 2) / (2 * 1.7**2))
        strength = strength + 0.55 * kind.darkness * spot
    return cover * strength, cover


def _draw_chromatin(shape: tuple[int, ...], random: np.random.Generator) -> Doubles:
    grain = ndimage.gaussian_filter(random.normal(size=shape[1:]), 1.4)
    return np.asarray(np.clip(grain / grain.std(), -2, 2) * 0.5)


def stamp_nuclei(
    hematoxylin: Floats,
    eosin: Floats,
    stamps: NucleusStamps,
    positions: Doubles,
    angles: Doubles,
    random: np.random.Generator,
) -> None:
    """Draw a nucleus at each position; those that cross the border of the image are skipped.

    Args:
        hematoxylin: (h, w), changed.
        eosin: (h, w), changed: a nucleus takes up little of it.
        stamps: of the kind.
        positions: (N, 2), x and y.
        angles: (N,), the direction of each.
        random: chooses the variants.
    """
    turns, variants, side, _ = stamps.strength.shape
    turn_of = np.rint(angles / math.pi * turns).astype(int) % turns
    variant_of = random.integers(variants, size=len(positions))
    corners = np.rint(positions).astype(int) - side // 2
    fits = (corners >= 0).all(1) & (corners + side <= hematoxylin.shape[::-1]).all(1)
    columns = (corners[fits].tolist(), turn_of[fits].tolist(), variant_of[fits].tolist())
    for (x, y), turn, variant in zip(*columns, strict=True):
        window = (slice(y, y + side), slice(x, x + side))
        np.maximum(hematoxylin[window], stamps.strength[turn, variant], out=hematoxylin[window])
        eosin[window] *= 1 - 0.55 * stamps.cover[turn, variant]
