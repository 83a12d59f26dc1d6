"""Textures of synthetic tissue: noise, fibres, nuclei, and the colours of two stains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from sacmil.errors import require_extra

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]

_HEMATOXYLIN = np.array([0.69, 0.71, 0.29])
_EOSIN = np.array([0.13, 0.86, 0.42])
"""Optical density in red, green and blue."""
_MAX_AMOUNT = 2.6
"""Largest amount of either stain; more is not darker."""
_STEPS = 128


def make_soft_noise(random: np.random.Generator, size: tuple[int, int], scale: float) -> Floats:
    """Return (h, w) smooth noise of about −1 to 1.

    Args:
        random: the generator.
        size: width and height.
        scale: pixels between two independent values.
    """
    width, height = size
    coarse = (int(height / scale) + 4, int(width / scale) + 4)
    return enlarge_image(random.uniform(-1, 1, coarse).astype(np.float32), size)


def enlarge_image(values: Floats, size: tuple[int, int]) -> Floats:
    """Interpolate values on a coarse grid to a smooth image of this width and height."""
    with require_extra("slides", "drawing slides"):
        from PIL import Image
    return np.array(Image.fromarray(values).resize(size, Image.Resampling.BICUBIC), np.float32)


class Fibers(NamedTuple):
    """Wavy bundles of fibres."""

    strength: Floats
    """(h, w), 0 to 1."""
    across: Floats
    """(h, w), distance in pixels across the bundles; a bundle follows its level lines."""
    step: int
    """Pixels of the slide per pixel of both arrays."""

    def compute_directions(self, positions: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return (N,) the angle of the bundles at positions (N, 2) of x and y."""
        x, y = (positions / self.step).astype(int).T
        high, wide = self.across.shape
        right, left = np.minimum(x + 4, wide - 1), np.maximum(x - 4, 0)
        below, above = np.minimum(y + 4, high - 1), np.maximum(y - 4, 0)
        in_x = self.across[y, right] - self.across[y, left]
        in_y = self.across[below, x] - self.across[above, x]
        return np.asarray(np.arctan2(-in_x, in_y), np.float64)


def make_fibers(
    random: np.random.Generator, size: tuple[int, int], width: float, *, step: int = 2
) -> Fibers:
    """Make bundles about ``width`` pixels wide that bend and vary in width.

    The strength of a pixel is interpolated from random values at its distance across the bundles,
    at three widths. Soft noise bends the distance, and with it the bundles.
    """
    across = _make_bent_distances(random, (size[0] // step, size[1] // step), step)
    strengths = random.uniform(0, 1, 8192).astype(np.float32)
    found = np.zeros_like(across)
    for share, wide in ((0.5, width), (0.3, width / 2.7), (0.2, width / 6)):
        position = across / np.float32(wide)
        before = position.astype(np.int32)
        between = position - before
        between *= between * (3 - 2 * between)
        low, high = strengths[before & 8191], strengths[(before + 1) & 8191]
        found += np.float32(share) * (low + (high - low) * between)
    return Fibers(found, across, step)


def _make_bent_distances(random: np.random.Generator, size: tuple[int, int], step: int) -> Floats:
    """Return (h, w) the distance across the bundles in level-0 pixels, from zero."""
    wide, high = size
    turn = random.uniform(0, np.pi)
    x = np.arange(wide, dtype=np.float32) * np.float32(step * np.cos(turn))
    y = np.arange(high, dtype=np.float32) * np.float32(step * np.sin(turn))
    across = y[:, None] + x[None, :]
    # heights well below scales: otherwise bundles would close to rings
    for scale, height in ((900, 250), (260, 34), (90, 8)):
        across += np.float32(height) * make_soft_noise(random, size, scale / step)
    return np.asarray(across - across.min(), np.float32)


@dataclass(frozen=True)
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


NUCLEUS_KINDS = {
    "stroma": NucleusKind(12.5, 2.7, variation=0.25, darkness=0.95, chromatin=0.2, unevenness=0.1),
    "gland": NucleusKind(9.5, 4.8, variation=0.1, darkness=1.0, chromatin=0.2, unevenness=0.04),
    "tumour": NucleusKind(
        10.5, 8.2, variation=0.2, darkness=1.05, chromatin=0.5, unevenness=0.12, nucleoli=2
    ),
    "lymphocyte": NucleusKind(
        5.6, 5.2, variation=0.1, darkness=1.45, chromatin=0.3, unevenness=0.04
    ),
}


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


@dataclass(frozen=True)
class Stain:
    """The staining of one slide; slides differ, as they do between days and laboratories."""

    hematoxylin: float = 1.0
    eosin: float = 1.0
    warmth: float = 0.0
    """Hue of the eosin: below zero bluish, above zero orange."""
    glass: tuple[float, float, float] = (244.0, 243.0, 245.0)
    """Colour of bare glass."""

    @classmethod
    def sample(cls, random: np.random.Generator) -> Stain:
        """Return a random staining."""
        hematoxylin, eosin = random.uniform(0.92, 1.08, 2)
        glass = 243 + random.uniform(-2, 2, 3)
        return cls(hematoxylin, eosin, random.uniform(-0.05, 0.05), tuple(glass.tolist()))

    def to_rgb(self, hematoxylin: Floats, eosin: Floats) -> Pixels:
        """Return (h, w, 3), by a table of all pairs of amounts: exponents per pixel are slow."""
        steps = np.linspace(0, _MAX_AMOUNT, _STEPS)
        vector = _EOSIN + [0, 0, self.warmth]
        density = (
            steps[:, None, None] * self.hematoxylin * _HEMATOXYLIN
            + steps[None, :, None] * self.eosin * vector
        )
        table = np.rint(np.exp(-density) * self.glass).astype(np.uint8).reshape(-1, 3)
        pairs = _quantize_amount(hematoxylin)
        pairs *= _STEPS
        pairs += _quantize_amount(eosin)
        return np.asarray(table.take(pairs, axis=0))


def _quantize_amount(amount: Floats) -> npt.NDArray[np.int32]:
    scaled = amount * np.float32((_STEPS - 1) / _MAX_AMOUNT)
    scaled += np.float32(0.5)
    return np.clip(scaled, 0, _STEPS - 1, out=scaled).astype(np.int32)
