"""Task 4, margin: immune cells inside the tumour, or only at its border. Composition is equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from sacmil.errors import ConfigError
from sacmil.synthetic.bags.kind_probabilities import estimate_kind_shares
from sacmil.synthetic.bags.lesion_shape import Polygons, compute_lesion_distances, select_lowest
from sacmil.synthetic.bags.neighborhood import average_neighborhood
from sacmil.synthetic.bags.task import (
    EXPECTED_FRACTIONS,
    EXPECTED_SHARES,
    TISSUES,
    UNASSIGNED,
    CellKinds,
    KindProbabilities,
    Positions,
    Span,
    SyntheticTask,
    draw_count,
    is_fraction,
    is_share,
    make_two_class_scores,
)

ORACLE_WIDTH = 1.5
ORACLE_EDGE = 0.7
ORACLE_STEEPNESS = 6
"""How the oracle separates inside from outside: in patches, and in a blob's share of tumour."""

MAX_SHARE = 0.9
"""Largest share of a slide for tumour and rim, so that they fit on a slide of twenty cells."""


@dataclass(frozen=True, kw_only=True)
class Margin(SyntheticTask):
    """Task: have the immune cells entered the tumour?

    A tumour is a blob of tumour cells with gaps. Immune cells are in gaps, or in a rim around the
    blob. Neither counts nor the positions of tumour cells depend on the label.
    """

    name: ClassVar[str] = "margin"
    classes: tuple[str, ...] = ("excluded", "infiltrated")
    tumour_share: Span = (0.1, 0.25)
    """Tumour cells among all."""
    lesions: int = 2
    """Blobs of tumour on a slide."""
    density: float = 0.6
    """Tumour cells among the cells of a blob; the others are gaps."""
    immune_share: float = 0.5
    """Immune cells per gap."""
    rim: float = 1.5
    """Positions in the rim per immune cell."""
    stray: float = 0.2
    """Share of the immune cells that are anywhere else."""
    infiltration: tuple[Span, Span] = ((0.0, 0.0), (1.0, 1.0))
    """Share of the others that are inside, for each class."""
    outlines: Polygons = ()
    """Shapes of the tumours; random blobs if empty."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_valid("tumour_share", is_share(self.tumour_share), EXPECTED_SHARES)
        self.require_valid("density", 0 < self.density < 1, "above 0 and below 1: gaps are needed")
        self.require_valid("lesions", self.lesions >= 1, "1 or more")
        self.require_valid("immune_share", 0 < self.immune_share <= 1, "above 0 and up to 1")
        self.require_valid("rim", self.rim >= 1, "1 or more: a position for every immune cell")
        self.require_valid("stray", 0 <= self.stray <= 1, "0 to 1")
        is_valid = all(is_fraction(span) for span in self.infiltration)
        self.require_valid("infiltration", is_valid, EXPECTED_FRACTIONS)
        largest = self.tumour_share[1] / self.density
        gaps = largest * (1 - self.density)
        if largest + gaps * self.immune_share * (1 + self.rim) > MAX_SHARE:
            raise ConfigError(
                f"the tumour, {self.tumour_share[1]:g} of a slide at density {self.density:g}, and "
                f"its rim do not fit on {MAX_SHARE:g} of it; expected a smaller tumour_share or rim"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Healthy tissue, tumour and immune cells."""
        return (*TISSUES[: self.zones], "tumour", "immune")

    def draw_counts(self, n: int, label: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Draw counts that do not depend on the label."""
        tumour = draw_count(n, self.tumour_share, random)
        immune = max(1, int(self.immune_share * (self._compute_area(tumour) - tumour)))
        return np.array([*self.draw_healthy_counts(n - tumour - immune, random), tumour, immune])

    def place_cells(
        self,
        positions: Positions,
        counts: NDArray[np.int64],
        label: int,
        random: np.random.Generator,
    ) -> CellKinds:
        """Place the tumour first, independent of the label; then immune cells in gaps and rim."""
        tumour, immune = (int(count) for count in counts[self.zones :])
        blob, rim = self._grow_tumor_and_rim(positions, tumour, immune, random)
        kinds = np.full(len(positions), UNASSIGNED)
        kinds[blob[:tumour]] = self.zones
        settled = immune - round(self.stray * immune)
        inside = round(settled * random.uniform(*self.infiltration[label]))
        gaps = blob[tumour:]
        kinds[gaps[:inside]] = kinds[rim[: settled - inside]] = self.zones + 1
        elsewhere = np.flatnonzero(kinds == UNASSIGNED)
        kinds[random.choice(elsewhere, immune - settled, replace=False)] = self.zones + 1
        return self.fill_healthy_tissue(kinds, positions, counts, random)

    def _grow_tumor_and_rim(
        self, positions: Positions, tumour: int, immune: int, random: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of the blobs and of the rim around them, each in random order."""
        area = self._compute_area(tumour)
        sizes = area * random.dirichlet(np.full(self.lesions, 5.0))
        outwards = select_lowest(
            compute_lesion_distances(positions, sizes, random, self.outlines), len(positions)
        )
        rim = outwards[area : area + max(1, round(self.rim * immune))]
        return random.permutation(outwards[:area]), random.permutation(rim)

    def score_classes(
        self, positions: Positions, probabilities: KindProbabilities
    ) -> NDArray[np.float64]:
        """Score by the share of immune cells inside, where tumour is as dense as in a blob."""
        tumour, common = probabilities[:, self.zones], np.maximum(probabilities.mean(0), 1e-12)
        near = (
            average_neighborhood(positions, tumour, ORACLE_WIDTH, include_self=False).mean
            - tumour.mean()
        )
        in_blob = max(float(tumour @ near) / max(float(tumour.sum()), 1e-12), 1e-12)
        inside = expit(ORACLE_STEEPNESS * (near / in_blob - ORACLE_EDGE)) + 1e-12
        # Inside a blob the mixture of kinds differs, so their shares are estimated again.
        immune = inside.sum() * estimate_kind_shares(probabilities / common, inside)[-1]
        return make_two_class_scores(float(immune / (len(positions) * common[-1])))

    def _compute_area(self, tumour: int) -> int:
        """Return the area of the blob, with at least one gap for an immune cell."""
        return max(tumour + 1, round(tumour / self.density))
