"""Task 3, cluster: the same tumour cells, clustered or scattered. Composition is equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, kw_only=True)
class Cluster(Task):
    """Do the tumour cells stand together?

    How many there are is drawn without a look at the label, which only says where they go.
    """

    name: ClassVar[str] = "cluster"
    classes: tuple[str, ...] = ("scattered", "clustered")
    tumour_share: Span = (0.05, 0.15)
    """Tumour cells among all."""
    clusters: int = 5
    """How many clusters a slide's tumour is divided into."""
    density: float = 0.5
    """Tumour cells among the cells of a cluster."""
    clusteredness: tuple[Span, Span] = ((0.0, 0.0), (1.0, 1.0))
    """Share of the tumour that stands in clusters, for each class; the rest is scattered."""
    outlines: Polygons = ()
    """Shapes of the clusters; random blobs where there are none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("tumour_share", is_share(self.tumour_share), SHARES)
        self.require("density", 0 < self.density <= 1, "above 0 and up to 1")
        self.require("clusters", self.clusters >= 1, "1 or more")
        parts = all(is_part(span) for span in self.clusteredness)
        self.require("clusteredness", parts, PARTS)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Healthy tissue and tumour."""
        return (*TISSUES[: self.zones], "tumour")

    def counts(self, n: int, label: int, random: np.random.Generator) -> NDArray[np.int64]:
        """The same for either label."""
        tumour = share_of(n, self.tumour_share, random)
        return np.array([*self.healthy_counts(n - tumour, random), tumour])

    def place(
        self, places: Places, counts: NDArray[np.int64], label: int, random: np.random.Generator
    ) -> Kinds:
        """Some of the tumour into clusters, the rest anywhere."""
        tumour = int(counts[self.zones])
        together = round(tumour * random.uniform(*self.clusteredness[label]))
        area = min(len(places), round(together / self.density))
        kinds = np.full(len(places), EMPTY)
        if together:
            sizes = np.full(self.clusters, max(1.0, area / self.clusters))
            inside = first(growth(places, sizes, random, self.outlines), area)
            kinds[random.choice(inside, together, replace=False)] = self.zones
        free = np.flatnonzero(kinds == EMPTY)
        kinds[random.choice(free, tumour - together, replace=False)] = self.zones
        return self.fill(kinds, places, counts, random)

    def evidence(self, places: Places, belief: Belief) -> NDArray[np.float64]:
        """How much more tumour stands around tumour cells than anywhere."""
        tumour = belief[:, self.zones]
        area = max(1.0, float(tumour.sum()) / self.density / self.clusters)
        width = max(0.7, np.sqrt(area / np.pi) / 2)
        near = around(places, tumour, width, itself=False).mean
        return two_sided(float(tumour @ (near - tumour.mean()) / max(tumour.sum(), 1e-12)))
