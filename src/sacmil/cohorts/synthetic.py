"""Cohorts made from a seed, with the truth of every instance known.

``cluster``: every slide has the same share of tumour cells among others; they stand in clusters
(label 1) or scattered (label 0). Composition is equal, so no pooling can tell the two apart.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from sacmil.bag import Bag, Encoder
from sacmil.cohorts.tissue import tissue
from sacmil.units import Level0Px, MicronsPerPixel

PATCH = 512
"""Side of a tile in level-0 pixels."""


class LabelledBag(NamedTuple):
    """A bag and the class of its slide."""

    bag: Bag
    label: int


def cluster(
    slides: int,
    *,
    seed: int,
    instances: tuple[int, int] = (400, 800),
    dim: int = 32,
    tumour_share: float = 0.1,
    clusters: int = 3,
    contrast: float = 2.0,
) -> list[LabelledBag]:
    """Slides whose label is how the tumour cells stand, not how many there are.

    Args:
        slides: how many; labels alternate.
        seed: the same seed gives the same cohort.
        instances: fewest and most per slide.
        dim: width of a feature vector.
        tumour_share: tumour instances among all.
        clusters: how many clusters the tumour of a slide of label 1 stands in.
        contrast: distance between tumour and other instances in standard deviations.
    """
    random = np.random.default_rng(seed)
    direction = random.standard_normal(dim)
    direction *= contrast / np.linalg.norm(direction)
    bags = []
    for number in range(slides):
        label = number % 2
        coords = tissue(
            int(random.integers(*instances, endpoint=True)), int(random.integers(2**31))
        )
        tumour = round(tumour_share * len(coords))
        place = _clustered if label else _scattered
        truth = place(coords, tumour, clusters, random)
        features = random.standard_normal((len(coords), dim)) + np.outer(truth, direction)
        bags.append(
            LabelledBag(_bag(f"cluster-{seed}-{number:03}", coords, features, truth), label)
        )
    return bags


def _scattered(
    coords: npt.NDArray[np.int64], tumour: int, clusters: int, random: np.random.Generator
) -> npt.NDArray[np.int64]:
    return _marked(len(coords), random.choice(len(coords), tumour, replace=False))


def _clustered(
    coords: npt.NDArray[np.int64], tumour: int, clusters: int, random: np.random.Generator
) -> npt.NDArray[np.int64]:
    """The instances nearest to a few seeds, as many as there is tumour."""
    seeds = random.choice(len(coords), clusters, replace=False)
    distance, _ = cKDTree(coords[seeds]).query(coords)
    return _marked(len(coords), np.argsort(distance, kind="stable")[:tumour])


def _marked(count: int, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    truth = np.zeros(count, dtype=np.int64)
    truth[chosen] = 1
    return truth


def _bag(
    slide_id: str,
    coords: npt.NDArray[np.int64],
    features: npt.NDArray[np.float64],
    truth: npt.NDArray[np.int64],
) -> Bag:
    return Bag(
        slide_id=slide_id,
        features=features.astype(np.float32),
        coords=coords * PATCH,
        patch_size=Level0Px(PATCH),
        mpp=MicronsPerPixel(0.25),
        labels=truth,
        encoder=Encoder("synthetic"),
    )
