"""Task 4, margin: immune cells inside the tumour, or only at its border. Composition is equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from sacmil.cohorts.synthetic.mixture import shares
from sacmil.cohorts.synthetic.neighbourhood import around
from sacmil.cohorts.synthetic.shape import Polygons, first, growth
from sacmil.cohorts.synthetic.task import (
    EMPTY,
    PARTS,
    SHARES,
    TISSUES,
    Belief,
    Kinds,
    Places,
    Span,
    Task,
    is_part,
    is_share,
    share_of,
    two_sided,
)
from sacmil.errors import ConfigError

WIDTH = 1.5
EDGE = 0.7
STEEPNESS = 6
"""How the oracle tells inside from outside: in patches, and in a blob's own share of tumour."""

MOST = 0.9
"""Of a slide for tumour and rim: a slide of twenty cells must hold them."""


@dataclass(frozen=True, kw_only=True)
class Margin(Task):
    """Have the immune cells entered the tumour?

    A tumour is a blob of tumour cells with gaps. Immune cells fill gaps, or stand in a rim around
    the blob. Neither counts nor the places of tumour cells depend on the label.
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
    """Immune cells for every gap."""
    rim: float = 1.5
    """Places in the rim for every immune cell."""
    stray: float = 0.2
    """Share of the immune cells that stand anywhere else."""
    infiltration: tuple[Span, Span] = ((0.0, 0.0), (1.0, 1.0))
    """Share of the others that stand inside, for each class."""
    outlines: Polygons = ()
    """Shapes of the tumours; random blobs where there are none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("tumour_share", is_share(self.tumour_share), SHARES)
        self.require("density", 0 < self.density < 1, "above 0 and below 1: gaps are needed")
        self.require("lesions", self.lesions >= 1, "1 or more")
        self.require("immune_share", 0 < self.immune_share <= 1, "above 0 and up to 1")
        self.require("rim", self.rim >= 1, "1 or more: a place for every immune cell")
        self.require("stray", 0 <= self.stray <= 1, "0 to 1")
        parts = all(is_part(span) for span in self.infiltration)
        self.require("infiltration", parts, PARTS)
        largest = self.tumour_share[1] / self.density
        gaps = largest * (1 - self.density)
        if largest + gaps * self.immune_share * (1 + self.rim) > MOST:
            raise ConfigError(
                f"the tumour, {self.tumour_share[1]:g} of a slide at density {self.density:g}, and "
                f"its rim do not fit on {MOST:g} of it; expected a smaller tumour_share or rim"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Healthy tissue, tumour and immune cells."""
        return (*TISSUES[: self.zones], "tumour", "immune")

    def counts(self, n: int, label: int, random: np.random.Generator) -> NDArray[np.int64]:
        """The same for either label."""
        tumour = share_of(n, self.tumour_share, random)
        immune = max(1, int(self.immune_share * (self._area(tumour) - tumour)))
        return np.array([*self.healthy_counts(n - tumour - immune, random), tumour, immune])

    def place(
        self, places: Places, counts: NDArray[np.int64], label: int, random: np.random.Generator
    ) -> Kinds:
        """The tumour first, the same for either label; then immune cells in gaps and rim."""
        tumour, immune = (int(count) for count in counts[self.zones :])
        blob, rim = self._grown(places, tumour, immune, random)
        kinds = np.full(len(places), EMPTY)
        kinds[blob[:tumour]] = self.zones
        settled = immune - round(self.stray * immune)
        inside = round(settled * random.uniform(*self.infiltration[label]))
        gaps = blob[tumour:]
        kinds[gaps[:inside]] = kinds[rim[: settled - inside]] = self.zones + 1
        elsewhere = np.flatnonzero(kinds == EMPTY)
        kinds[random.choice(elsewhere, immune - settled, replace=False)] = self.zones + 1
        return self.fill(kinds, places, counts, random)

    def _grown(
        self, places: Places, tumour: int, immune: int, random: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The places of the blobs and those of the rim around them, each in random order."""
        area = self._area(tumour)
        sizes = area * random.dirichlet(np.full(self.lesions, 5.0))
        outwards = first(growth(places, sizes, random, self.outlines), len(places))
        rim = outwards[area : area + max(1, round(self.rim * immune))]
        return random.permutation(outwards[:area]), random.permutation(rim)

    def evidence(self, places: Places, belief: Belief) -> NDArray[np.float64]:
        """Which share of the immune cells is inside: where as much tumour is as in a blob."""
        tumour, common = belief[:, self.zones], np.maximum(belief.mean(0), 1e-12)
        near = around(places, tumour, WIDTH, itself=False).mean - tumour.mean()
        in_blob = max(float(tumour @ near) / max(float(tumour.sum()), 1e-12), 1e-12)
        inside = expit(STEEPNESS * (near / in_blob - EDGE)) + 1e-12
        # Inside a blob kinds are mixed otherwise than elsewhere: their shares are found anew.
        immune = inside.sum() * shares(belief / common, inside)[-1]
        return two_sided(float(immune / (len(places) * common[-1])))

    def _area(self, tumour: int) -> int:
        """Of the blob; a gap for an immune cell is always there."""
        return max(tumour + 1, round(tumour / self.density))
