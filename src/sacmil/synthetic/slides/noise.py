"""Noise for synthetic tissue: smooth at a given scale, or stretched into fibres."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.errors import MissingExtraError

Floats = npt.NDArray[np.float32]


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
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("slides", "drawing slides") from None
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
