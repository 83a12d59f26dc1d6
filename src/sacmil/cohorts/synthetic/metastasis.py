"""Task 1, metastasis: a small lesion, or none; single cells that look like tumour in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from sacmil.cohorts.synthetic.neighbourhood import around
from sacmil.cohorts.synthetic.shape import Polygons, first, growth
from sacmil.cohorts.synthetic.task import (
    EMPTY,
    SHARES,
    TISSUES,
    Belief,
    Kinds,
    Places,
    Span,
    Task,
    is_share,
    share_of,
    two_sided,
)
from sacmil.errors import ConfigError

WIDTHS = (0.7, 1.5, 3.0, 6.0)
"""In patches: the sizes of lesion the oracle looks for."""
SMALLEST = 4
MOST = 0.7
"""Of a slide for lesions and mimics: a slide of twenty cells must hold them."""


@dataclass(frozen=True, kw_only=True)
class Metastasis(Task):
    """Is there a lesion?"""

    name: ClassVar[str] = "metastasis"
    classes: tuple[str, ...] = ("normal", "tumour")
    lesion_share: Span = (0.005, 0.03)
    """Tumour cells among all, where there is a lesion."""
    lesions: int = 3
    """Most lesions on a slide."""
    density: float = 0.8
    """Tumour cells among the cells of a lesion."""
    mimic_share: Span = (0.003, 0.03)
    """Scattered single cells that look like tumour, among all, on every slide."""
    likeness: float = 0.8
    """How far from healthy tissue to tumour a mimic's mean feature is; at 1 it is tumour's."""
    outlines: Polygons = ()
    """Shapes of the lesions; random blobs where there are none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("lesion_share", is_share(self.lesion_share), SHARES)
        self.require("mimic_share", is_share(self.mimic_share), SHARES)
        self.require("density", 0 < self.density <= 1, "above 0 and up to 1")
        self.require("likeness", 0 <= self.likeness <= 1, "0 to 1")
        self.require("lesions", self.lesions >= 1, "1 or more")
        if self.lesion_share[1] + self.mimic_share[1] > MOST:
            raise ConfigError(
                f"lesions of {self.lesion_share[1]:g} and mimics of {self.mimic_share[1]:g} of a "
                f"slide do not fit on it; expected {MOST:g} or less together"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Healthy tissue, tumour, and what only looks like it."""
        return (*TISSUES[: self.zones], "tumour", "mimic")

    def counts(self, n: int, label: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Both classes draw the mimics alike; only tumour comes on top."""
        mimic = share_of(n, self.mimic_share, random)
        tumour = max(SMALLEST, share_of(n, self.lesion_share, random)) if label else 0
        healthy = self.healthy_counts(n - tumour - mimic, random)
        return np.array([*healthy, tumour, mimic])

    def place(
        self, places: Places, counts: NDArray[np.int64], label: int, random: np.random.Generator
    ) -> Kinds:
        """Lesions grow from their centres; mimics stand anywhere else."""
        tumour, mimic = (int(count) for count in counts[self.zones :])
        kinds = np.full(len(places), EMPTY)
        if tumour:
            area = min(len(places) - mimic, round(tumour / self.density))
            sizes = area * random.dirichlet(np.ones(random.integers(1, self.lesions + 1)))
            lesion = first(growth(places, sizes + 1, random, self.outlines), area)
            kinds[random.choice(lesion, tumour, replace=False)] = self.zones
        free = np.flatnonzero(kinds == EMPTY)
        kinds[random.choice(free, mimic, replace=False)] = self.zones + 1
        return self.fill(kinds, places, counts, random)

    def prototypes(self, dim: int, random: np.random.Generator) -> NDArray[np.float64]:
        """A mimic's lies between healthy tissue and tumour."""
        prototypes = super().prototypes(dim, random)
        healthy, tumour = prototypes[: self.zones].mean(0), prototypes[self.zones]
        prototypes[self.zones + 1] = healthy + self.likeness * (tumour - healthy)
        return prototypes

    def evidence(self, places: Places, belief: Belief) -> NDArray[np.float64]:
        """How much likelier a lesion somewhere makes the slide, over all places and widths."""
        tumour = np.clip(belief[:, self.zones], 1e-12, 1 - 1e-12)
        common = np.clip(tumour.mean(), 1e-9, 1 - 1e-9)
        ratio = tumour / (1 - tumour) * (1 - common) / common
        gain = np.log1p(self.density * (ratio - 1))
        spots = [around(places, gain, width) for width in WIDTHS]
        sums = np.stack([spot.mean * spot.size for spot in spots])
        return two_sided(float(logsumexp(sums) - np.log(sums.size)))
