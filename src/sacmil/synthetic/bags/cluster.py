"""Task 3, cluster: the same tumour cells, clustered or scattered. Composition is equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, kw_only=True)
class Cluster(SyntheticTask):
    """Task: are the tumour cells clustered?

    Their number does not depend on the label; only their positions do.
    """

    name: ClassVar[str] = "cluster"
    classes: tuple[str, ...] = ("scattered", "clustered")
    tumour_share: Span = (0.05, 0.15)
    """Tumour cells among all."""
    clusters: int = 5
    """Number of clusters on a slide."""
    density: float = 0.5
    """Tumour cells among the cells of a cluster."""
    clusteredness: tuple[Span, Span] = ((0.0, 0.0), (1.0, 1.0))
    """Share of the tumour in clusters, for each class; the rest is scattered."""
    outlines: Polygons = ()
    """Shapes of the clusters; random blobs if empty."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_valid("tumour_share", is_share(self.tumour_share), EXPECTED_SHARES)
        self.require_valid("density", 0 < self.density <= 1, "above 0 and up to 1")
        self.require_valid("clusters", self.clusters >= 1, "1 or more")
        is_valid = all(is_fraction(span) for span in self.clusteredness)
        self.require_valid("clusteredness", is_valid, EXPECTED_FRACTIONS)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Healthy tissue and tumour."""
        return (*TISSUES[: self.zones], "tumour")

    def draw_counts(self, n: int, label: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Draw counts that do not depend on the label."""
        tumour = draw_count(n, self.tumour_share, random)
        return np.array([*self.draw_healthy_counts(n - tumour, random), tumour])

    def place_cells(
        self,
        positions: Positions,
        counts: NDArray[np.int64],
        label: int,
        random: np.random.Generator,
    ) -> CellKinds:
        """Place some of the tumour in clusters, the rest anywhere."""
        tumour = int(counts[self.zones])
        clustered = round(tumour * random.uniform(*self.clusteredness[label]))
        area = min(len(positions), round(clustered / self.density))
        kinds = np.full(len(positions), UNASSIGNED)
        if clustered:
            sizes = np.full(self.clusters, max(1.0, area / self.clusters))
            inside = select_lowest(
                compute_lesion_distances(positions, sizes, random, self.outlines), area
            )
            kinds[random.choice(inside, clustered, replace=False)] = self.zones
        free = np.flatnonzero(kinds == UNASSIGNED)
        kinds[random.choice(free, tumour - clustered, replace=False)] = self.zones
        return self.fill_healthy_tissue(kinds, positions, counts, random)

    def score_classes(
        self, positions: Positions, probabilities: KindProbabilities
    ) -> NDArray[np.float64]:
        """Score by how much more tumour is near tumour cells than on average."""
        tumour = probabilities[:, self.zones]
        area = max(1.0, float(tumour.sum()) / self.density / self.clusters)
        width = max(0.7, np.sqrt(area / np.pi) / 2)
        near = average_neighborhood(positions, tumour, width, include_self=False).mean
        return make_two_class_scores(
            float(tumour @ (near - tumour.mean()) / max(tumour.sum(), 1e-12))
        )
