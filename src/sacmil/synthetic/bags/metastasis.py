"""Task 1, metastasis: a small lesion, or none; single cells that look like tumour in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from sacmil.errors import ConfigError
from sacmil.synthetic.bags.lesion_shape import Polygons, compute_lesion_distances, select_lowest
from sacmil.synthetic.bags.neighborhood import average_neighborhood
from sacmil.synthetic.bags.task import (
    EXPECTED_SHARES,
    TISSUES,
    UNASSIGNED,
    CellKinds,
    KindProbabilities,
    Positions,
    Span,
    SyntheticTask,
    draw_count,
    is_share,
    make_two_class_scores,
)

ORACLE_WIDTHS = (0.7, 1.5, 3.0, 6.0)
"""Sizes of lesions that the oracle searches for, in patches."""
MIN_TUMOR_CELLS = 4
MAX_SHARE = 0.7
"""Largest share of a slide for lesions and mimics, so that they fit on one of twenty cells."""


@dataclass(frozen=True, kw_only=True)
class Metastasis(SyntheticTask):
    """Task: is there a lesion?"""

    name: ClassVar[str] = "metastasis"
    classes: tuple[str, ...] = ("normal", "tumour")
    lesion_share: Span = (0.005, 0.03)
    """Tumour cells among all, on a slide with a lesion."""
    lesions: int = 3
    """Most lesions on a slide."""
    density: float = 0.8
    """Tumour cells among the cells of a lesion."""
    mimic_share: Span = (0.003, 0.03)
    """Scattered single cells that look like tumour, among all, on every slide."""
    likeness: float = 0.8
    """Position of a mimic's mean feature between healthy tissue (0) and tumour (1)."""
    outlines: Polygons = ()
    """Shapes of the lesions; random blobs if empty."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_valid("lesion_share", is_share(self.lesion_share), EXPECTED_SHARES)
        self.require_valid("mimic_share", is_share(self.mimic_share), EXPECTED_SHARES)
        self.require_valid("density", 0 < self.density <= 1, "above 0 and up to 1")
        self.require_valid("likeness", 0 <= self.likeness <= 1, "0 to 1")
        self.require_valid("lesions", self.lesions >= 1, "1 or more")
        if self.lesion_share[1] + self.mimic_share[1] > MAX_SHARE:
            raise ConfigError(
                f"lesions of {self.lesion_share[1]:g} and mimics of {self.mimic_share[1]:g} of a "
                f"slide do not fit on it; expected {MAX_SHARE:g} or less in total"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Healthy tissue, tumour, and cells that only look like tumour."""
        return (*TISSUES[: self.zones], "tumour", "mimic")

    def draw_counts(self, n: int, label: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Draw counts; mimics do not depend on the label, tumour does."""
        mimic = draw_count(n, self.mimic_share, random)
        tumour = max(MIN_TUMOR_CELLS, draw_count(n, self.lesion_share, random)) if label else 0
        healthy = self.draw_healthy_counts(n - tumour - mimic, random)
        return np.array([*healthy, tumour, mimic])

    def place_cells(
        self,
        positions: Positions,
        counts: NDArray[np.int64],
        label: int,
        random: np.random.Generator,
    ) -> CellKinds:
        """Place lesions around their centres, and mimics anywhere else."""
        tumour, mimic = (int(count) for count in counts[self.zones :])
        kinds = np.full(len(positions), UNASSIGNED)
        if tumour:
            area = min(len(positions) - mimic, round(tumour / self.density))
            sizes = area * random.dirichlet(np.ones(random.integers(1, self.lesions + 1)))
            lesion = select_lowest(
                compute_lesion_distances(positions, sizes + 1, random, self.outlines), area
            )
            kinds[random.choice(lesion, tumour, replace=False)] = self.zones
        free = np.flatnonzero(kinds == UNASSIGNED)
        kinds[random.choice(free, mimic, replace=False)] = self.zones + 1
        return self.fill_healthy_tissue(kinds, positions, counts, random)

    def make_prototypes(self, dim: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return the prototypes; that of a mimic is between healthy tissue and tumour."""
        prototypes = super().make_prototypes(dim, random)
        healthy, tumour = prototypes[: self.zones].mean(0), prototypes[self.zones]
        prototypes[self.zones + 1] = healthy + self.likeness * (tumour - healthy)
        return prototypes

    def score_classes(
        self, positions: Positions, probabilities: KindProbabilities
    ) -> NDArray[np.float64]:
        """Score by the likelihood ratio of a lesion, over all positions and widths."""
        tumour = np.clip(probabilities[:, self.zones], 1e-12, 1 - 1e-12)
        common = np.clip(tumour.mean(), 1e-9, 1 - 1e-9)
        ratio = tumour / (1 - tumour) * (1 - common) / common
        gain = np.log1p(self.density * (ratio - 1))
        spots = [average_neighborhood(positions, gain, width) for width in ORACLE_WIDTHS]
        sums = np.stack([spot.mean * spot.size for spot in spots])
        return make_two_class_scores(float(logsumexp(sums) - np.log(sums.size)))
