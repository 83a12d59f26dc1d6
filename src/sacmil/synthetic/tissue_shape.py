"""Coordinates of synthetic tissue: lobes, a ragged edge, and holes of fat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Image = NDArray[np.float64]

LOBES = 3
TISSUE_SHARE = 0.5  # of the square around it
FAT_SHARE = 0.2
FAT_PATCHES = 20  # distance between drops of fat
RAGGED_PATCHES = 10


def make_tissue_coords(n: int, seed: int) -> NDArray[np.int64]:
    """Return patch-grid coordinates of n patches of tissue; equal seeds give equal tissue.

    Every position of a square gets a score: high inside lobes, rough towards their edge, lowest
    in fat. One side of the slide has more fat than the other. The n highest scores are tissue.

    Args:
        n: number of patches.
        seed: of the tissue.
    """
    random = np.random.default_rng(seed)
    side = int(np.ceil(np.sqrt(n / TISSUE_SHARE))) + 2
    score = _score_lobes(random, side) + 0.3 * make_smooth_noise(random, side, side / 7)
    score += 0.03 * make_smooth_noise(random, side, RAGGED_PATCHES) + 0.01 * random.random(
        (side, side)
    )
    fat = make_smooth_noise(random, side, FAT_PATCHES) + make_smooth_noise(random, side, side / 2)
    score[fat > np.quantile(fat, 1 - FAT_SHARE)] -= 10
    highest = np.sort(np.argpartition(score, -n, axis=None)[-n:])
    return np.stack(np.divmod(highest, side), axis=1)


def _score_lobes(random: np.random.Generator, side: int) -> Image:
    """Return one minus the distance to the nearest of several discs, in units of its radius."""
    axis = np.arange(side) / side
    x, y, radius = random.uniform([[0.3], [0.3], [0.2]], [[0.7], [0.7], [0.4]], (3, LOBES))
    discs = zip(x, y, radius, strict=True)
    distances = [np.hypot(axis[:, None] - a, axis - b) / r for a, b, r in discs]
    score: Image = 1 - np.min(distances, axis=0)
    return score


def make_smooth_noise(random: np.random.Generator, side: int, patches: float) -> Image:
    """Return smooth noise whose hills and valleys are about ``patches`` patches wide."""
    coarse = random.standard_normal((int(side / patches) + 4, int(side / patches) + 4))
    smooth: Image = ndimage.zoom(coarse, side / len(coarse), order=3)
    return smooth
