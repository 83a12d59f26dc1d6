"""Tasks of composition and of neighborhood: counts and positions of cells, the oracle's scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, logsumexp

from sacmil.cohorts.cohort import Label
from sacmil.errors import ConfigError
from sacmil.metrics.classification import auc
from sacmil.synthetic.bags.lesion_shape import Polygons, sort_by_lesion_distance
from sacmil.synthetic.bags.statistics import average_neighborhood, estimate_kind_shares
from sacmil.synthetic.tissue_shape import make_smooth_noise
from sacmil.tasks import Classification, Task

Positions = NDArray[np.int64]
"""(N, 2), patch-grid coordinates."""
Counts = NDArray[np.int64]
"""(kinds,), the number of cells of each kind."""
CellKinds = NDArray[np.int64]
"""(N,), the kind of cell of every instance: an index into the task's kinds."""
Floats = NDArray[np.float64]
Random = np.random.Generator
Span = tuple[float, float]
"""Lowest and highest value; a slide's value is uniform between them."""

TISSUES = ("stroma", "epithelium", "muscle", "lymphoid")
"""Kinds of healthy tissue; a task uses as many as it has zones."""
ZONE_PATCHES = 25
UNASSIGNED = -1


class Limits(NamedTuple):
    """What a setting may be: a number, a span, or a span for each of two classes."""

    low: float
    high: float
    expected: str
    excluded: tuple[float, ...] = ()

    def allow(self, value: Any) -> bool:
        """Whether all numbers are within the limits, and those of a span in order."""
        spans = np.atleast_2d(value)
        is_inside = (self.low <= spans) & (spans <= self.high) & ~np.isin(spans, self.excluded)
        return bool(is_inside.all() and (np.diff(spans, axis=1) >= 0).all())


_AT_LEAST_ONE = Limits(1, inf, "1 or more")
_ZERO_TO_ONE = Limits(0, 1, "0 to 1")
_ABOVE_ZERO = Limits(0, 1, "above 0 and up to 1", excluded=(0,))
_SHARES = Limits(0, 1, "lowest and highest share, above 0 and up to 1", excluded=(0,))
_FRACTIONS = Limits(0, 1, "lowest and highest fraction, from 0 to 1, for each of two classes")
TASK_LIMITS = {
    "contrast": Limits(0, inf, "0 or more"),
    "zones": Limits(1, len(TISSUES), f"1 to {len(TISSUES)}"),
    "lesion_share": _SHARES,
    "mimic_share": _SHARES,
    "tumour_share": _SHARES,
    "lesions": _AT_LEAST_ONE,
    "clusters": _AT_LEAST_ONE,
    "density": _ABOVE_ZERO,
    "immune_share": _ABOVE_ZERO,
    "likeness": _ZERO_TO_ONE,
    "stray": _ZERO_TO_ONE,
    "rim": Limits(1, inf, "1 or more: a position for every immune cell"),
    "clusteredness": _FRACTIONS,
    "infiltration": _FRACTIONS,
}
"""By name of the setting."""


@dataclass(frozen=True, kw_only=True)
class SyntheticTask(ABC):
    """The settings of a task, and how its slides are made.

    The label of a slide is the index of its class here. Other tasks have values, see ``Label``.
    """

    name: ClassVar[str]
    min_instances: ClassVar[int] = 20
    """Fewest instances of a slide."""
    limits: ClassVar[Mapping[str, Limits]] = TASK_LIMITS
    other_kinds: ClassVar[tuple[str, ...]] = ("tumour",)
    """Kinds of cells besides healthy tissue."""
    classes: tuple[str, ...] = ()
    """Names of the labels."""
    contrast: float = 2.0
    """Distance between any two kinds of cells in standard deviations of the noise."""
    zones: int = 3
    """Kinds of healthy tissue, each in its own area of the slide."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, limits = getattr(self, field.name), self.limits.get(field.name)
            if limits and not limits.allow(value):
                raise ConfigError(f"{field.name} is {value!r}; expected {limits.expected}")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds of cells; healthy tissue first."""
        return (*TISSUES[: self.zones], *self.other_kinds)

    @property
    def tumor_kinds(self) -> tuple[int, ...]:
        """Indices of the kinds that are tumour."""
        return (self.zones,)

    @property
    def target_task(self) -> Task:
        """What is predicted."""
        return Classification(self.classes)

    @property
    def groups(self) -> int:
        """Groups of patients, equally frequent; by default one for each class."""
        return len(self.classes)

    def draw_label(self, group: int, random: Random) -> Label:
        """Draw the label of a patient of a group."""
        return group

    def hide_label(self, label: Label, random: Random) -> Label:
        """Return what the table has of a label, NaN for what is unknown."""
        return label

    @abstractmethod
    def draw_other_counts(self, n: int, label: Any, random: Random) -> list[int]:
        """Draw how many of n instances are of each kind besides healthy tissue."""

    @abstractmethod
    def place_other_cells(
        self, kinds: CellKinds, positions: Positions, counts: list[int], label: Any, random: Random
    ) -> None:
        """Assign the kinds besides healthy tissue to positions, exactly ``counts`` of each."""

    @abstractmethod
    def score_classes(self, positions: Positions, probabilities: Floats) -> Floats:
        """Return one score per class, computed with full knowledge of how slides are made.

        For other targets it is the value, or a score for each label.

        Args:
            positions: (N, 2).
            probabilities: (N, kinds), of each kind for every instance; 0 or 1 for the truth.
        """

    def measure_oracle(self, labels: Sequence[Any], scores: Floats) -> dict[str, float]:
        """Return metrics by name of an oracle's scores (slides, S), given the true labels."""
        columns = enumerate(np.transpose(scores))
        each = [auc(np.equal(labels, label), column) for label, column in columns]
        return {"auc": float(np.mean(each))}

    def make_prototypes(self, dim: int, random: Random) -> Floats:
        """Return (kinds, dim) the mean feature of each kind, a simplex with edge ``contrast``."""
        kinds = len(self.kinds)
        if dim < kinds:
            raise ConfigError(
                f"dim is {dim}; {self.name} has {kinds} kinds of cells, expected at least {kinds}"
            )
        directions, _ = np.linalg.qr(random.standard_normal((dim, kinds)))
        return self.adjust_prototypes(np.asarray(directions.T * self.contrast / np.sqrt(2)))

    def adjust_prototypes(self, prototypes: Floats) -> Floats:
        """Return the prototypes of kinds that are not all equally far apart."""
        return prototypes

    def choose_zone_width(self, n: int) -> float:
        """Return the width of a zone of healthy tissue in patches, on a slide of n."""
        return ZONE_PATCHES

    def draw_counts(self, n: int, label: Any, random: Random) -> Counts:
        """Draw how many of n instances are of each kind; zones of healthy tissue are uneven."""
        others = self.draw_other_counts(n, label, random)
        weights = random.uniform(0.5, 1.5, self.zones)
        cuts = np.round((n - sum(others)) * np.cumsum(weights) / weights.sum()).astype(np.int64)
        return np.array([*np.diff(cuts, prepend=0), *others])

    def place_cells(
        self, positions: Positions, counts: Counts, label: Any, random: Random
    ) -> CellKinds:
        """Assign a kind to every position; healthy tissue fills what is left, zone by zone."""
        kinds = np.full(len(positions), UNASSIGNED)
        self.place_other_cells(kinds, positions, counts[self.zones :].tolist(), label, random)
        side, width = int(positions.max()) + 1, self.choose_zone_width(len(positions))
        height = make_smooth_noise(random, side, width)[positions[:, 0], positions[:, 1]]
        empty = np.flatnonzero(kinds == UNASSIGNED)
        in_order = empty[np.argsort(height[empty], kind="stable")]
        kinds[in_order] = np.repeat(np.arange(self.zones), counts[: self.zones])
        return kinds


@dataclass(frozen=True, kw_only=True)
class Metastasis(SyntheticTask):
    """Task 1: is there a small lesion? Single cells look like tumour on slides of both classes."""

    name: ClassVar[str] = "metastasis"
    other_kinds: ClassVar[tuple[str, ...]] = ("tumour", "mimic")
    oracle_widths: ClassVar[tuple[float, ...]] = (0.7, 1.5, 3.0, 6.0)
    """Sizes of lesions that the oracle searches for, in patches."""
    min_tumor_cells: ClassVar[int] = 4
    max_share: ClassVar[float] = 0.7
    """Largest share of a slide for lesions and mimics, so that they fit on one of twenty cells."""
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
        if self.lesion_share[1] + self.mimic_share[1] > self.max_share:
            raise ConfigError(
                f"lesions of {self.lesion_share[1]:g} and mimics of {self.mimic_share[1]:g} of a "
                f"slide do not fit on it; expected {self.max_share:g} or less in total"
            )

    def draw_other_counts(self, n: int, label: int, random: Random) -> list[int]:
        """Draw counts; mimics do not depend on the label, tumour does."""
        mimic = draw_count(n, self.mimic_share, random)
        if not label:
            return [0, mimic]
        return [max(self.min_tumor_cells, draw_count(n, self.lesion_share, random)), mimic]

    def place_other_cells(
        self, kinds: CellKinds, positions: Positions, counts: list[int], label: int, random: Random
    ) -> None:
        """Place lesions around their centres, and mimics anywhere else."""
        tumour, mimic = counts
        if tumour:
            area = min(len(positions) - mimic, round(tumour / self.density))
            sizes = area * random.dirichlet(np.ones(random.integers(1, self.lesions + 1)))
            lesion = sort_by_lesion_distance(positions, sizes + 1, random, self.outlines)[:area]
            kinds[random.choice(lesion, tumour, replace=False)] = self.zones
        scatter_cells(kinds, mimic, self.zones + 1, random)

    def adjust_prototypes(self, prototypes: Floats) -> Floats:
        """Move that of a mimic between healthy tissue and tumour."""
        healthy, tumour = prototypes[: self.zones].mean(0), prototypes[self.zones]
        prototypes[self.zones + 1] = healthy + self.likeness * (tumour - healthy)
        return prototypes

    def score_classes(self, positions: Positions, probabilities: Floats) -> Floats:
        """Score by the likelihood ratio of a lesion, over all positions and widths."""
        tumour = np.clip(probabilities[:, self.zones], 1e-12, 1 - 1e-12)
        common = np.clip(tumour.mean(), 1e-9, 1 - 1e-9)
        ratio = tumour / (1 - tumour) * (1 - common) / common
        gain = np.log1p(self.density * (ratio - 1))
        spots = [average_neighborhood(positions, gain, width) for width in self.oracle_widths]
        sums = np.stack([mean * size for mean, size in spots])
        return make_two_class_scores(float(logsumexp(sums) - np.log(sums.size)))


@dataclass(frozen=True, kw_only=True)
class Subtype(SyntheticTask):
    """Task 2: which subtype is the tumour? Positions carry no information.

    Every class has its own kind of tumour cell, and every slide has some of each. Shares within
    the tumour are Dirichlet with parameters ``own`` for the class's own kind and ``other`` for
    the others.
    """

    name: ClassVar[str] = "subtype"
    classes: tuple[str, ...] = ("a", "b")
    tumour_share: Span = (0.1, 0.4)
    """Tumour cells of every kind among all."""
    own: float = 4.0
    other: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) < 2 or min(self.own, self.other) <= 0:
            raise ConfigError(
                f"subtype has {len(self.classes)} classes, own {self.own} and other {self.other}; "
                "expected two classes or more, and numbers above zero"
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Healthy tissue, and a kind of tumour for every class."""
        return (*TISSUES[: self.zones], *(f"tumour {name}" for name in self.classes))

    @property
    def tumor_kinds(self) -> tuple[int, ...]:
        """Indices of the kinds that are tumour."""
        return tuple(range(self.zones, len(self.kinds)))

    def draw_other_counts(self, n: int, label: int, random: Random) -> list[int]:
        """Draw counts; the amount of tumour does not depend on the label, its kinds do."""
        tumour = draw_count(n, self.tumour_share, random)
        shares = random.dirichlet(self._make_dirichlet_parameters()[label])
        cuts = np.round(tumour * np.cumsum(shares)).astype(np.int64)
        return [int(count) for count in np.diff(cuts, prepend=0)]

    def place_other_cells(
        self, kinds: CellKinds, positions: Positions, counts: list[int], label: int, random: Random
    ) -> None:
        """Place tumour at random positions."""
        tumour = np.repeat(self.tumor_kinds, counts)
        kinds[random.choice(len(positions), len(tumour), replace=False)] = tumour

    def score_classes(self, positions: Positions, probabilities: Floats) -> Floats:
        """Return the log-probability of each class given the shares; exact for known kinds."""
        # a kind without cells still gets some share
        counts = probabilities[:, self.zones :].sum(0) + 0.5
        likelihood = (self._make_dirichlet_parameters() - 1) @ np.log(counts / counts.sum())
        return np.asarray(log_softmax(likelihood))

    def _make_dirichlet_parameters(self) -> Floats:
        """Return (classes, classes) the Dirichlet parameters of each class."""
        return self.other + (self.own - self.other) * np.eye(len(self.classes))


@dataclass(frozen=True, kw_only=True)
class Cluster(SyntheticTask):
    """Task 3: are the tumour cells clustered?

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

    def draw_other_counts(self, n: int, label: int, random: Random) -> list[int]:
        """Draw counts that do not depend on the label."""
        return [draw_count(n, self.tumour_share, random)]

    def place_other_cells(
        self, kinds: CellKinds, positions: Positions, counts: list[int], label: int, random: Random
    ) -> None:
        """Place some of the tumour in clusters, the rest anywhere."""
        (tumour,) = counts
        clustered = round(tumour * random.uniform(*self.clusteredness[label]))
        area = min(len(positions), round(clustered / self.density))
        if clustered:
            sizes = np.full(self.clusters, max(1.0, area / self.clusters))
            inside = sort_by_lesion_distance(positions, sizes, random, self.outlines)[:area]
            kinds[random.choice(inside, clustered, replace=False)] = self.zones
        scatter_cells(kinds, tumour - clustered, self.zones, random)

    def score_classes(self, positions: Positions, probabilities: Floats) -> Floats:
        """Score by how much more tumour is near tumour cells than on average."""
        tumour = probabilities[:, self.zones]
        area = max(1.0, float(tumour.sum()) / self.density / self.clusters)
        width = max(0.7, np.sqrt(area / np.pi) / 2)
        near, _ = average_neighborhood(positions, tumour, width, include_self=False)
        excess = float(tumour @ (near - tumour.mean()) / max(tumour.sum(), 1e-12))
        return make_two_class_scores(excess)


@dataclass(frozen=True, kw_only=True)
class MarginTask(SyntheticTask):
    """How many immune cells have entered the tumour.

    A tumour is a blob of tumour cells with gaps. Immune cells are in gaps, or in a rim around the
    blob. Neither counts nor the positions of tumour cells depend on the label.
    """

    other_kinds: ClassVar[tuple[str, ...]] = ("tumour", "immune")
    limits: ClassVar[Mapping[str, Limits]] = TASK_LIMITS | {
        "density": Limits(0, 1, "above 0 and below 1: gaps are needed", excluded=(0, 1))
    }
    max_share: ClassVar[float] = 0.9
    """Largest share of a slide for tumour and rim, so that they fit on a slide of twenty cells."""
    oracle_width: ClassVar[float] = 1.5
    oracle_edge: ClassVar[float] = 0.7
    oracle_steepness: ClassVar[int] = 6
    """How the oracle separates inside from outside: in patches, and in a blob's share of tumour."""
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
    infiltration: tuple[Span, Span] | Span
    """Share of the others that are inside."""
    outlines: Polygons = ()
    """Shapes of the tumours; random blobs if empty."""

    def __post_init__(self) -> None:
        super().__post_init__()
        largest = self.tumour_share[1] / self.density
        gaps = largest * (1 - self.density)
        if largest + gaps * self.immune_share * (1 + self.rim) > self.max_share:
            raise ConfigError(
                f"the tumour, {self.tumour_share[1]:g} of a slide at density {self.density:g}, and "
                f"its rim do not fit on {self.max_share:g} of it; expected a smaller tumour_share "
                "or rim"
            )

    @abstractmethod
    def draw_infiltration(self, label: Any, random: Random) -> float:
        """Draw the share of immune cells inside, of those that are not stray."""

    def draw_other_counts(self, n: int, label: Any, random: Random) -> list[int]:
        """Draw counts that do not depend on the label."""
        tumour = draw_count(n, self.tumour_share, random)
        gaps = self._compute_area(tumour) - tumour
        return [tumour, max(1, int(self.immune_share * gaps))]

    def place_other_cells(
        self, kinds: CellKinds, positions: Positions, counts: list[int], label: Any, random: Random
    ) -> None:
        """Place the tumour first, independent of the label; then immune cells in gaps and rim."""
        tumour, immune = counts
        area = self._compute_area(tumour)
        sizes = area * random.dirichlet(np.full(self.lesions, 5.0))
        outwards = sort_by_lesion_distance(positions, sizes, random, self.outlines)
        blob = random.permutation(outwards[:area])
        rim = random.permutation(outwards[area : area + max(1, round(self.rim * immune))])
        kinds[blob[:tumour]] = self.zones
        settled = immune - round(self.stray * immune)
        inside = round(settled * self.draw_infiltration(label, random))
        gaps = blob[tumour:]
        kinds[gaps[:inside]] = kinds[rim[: settled - inside]] = self.zones + 1
        scatter_cells(kinds, immune - settled, self.zones + 1, random)

    def estimate_inside(self, positions: Positions, probabilities: Floats) -> Floats:
        """Return (kinds,) the share of each kind that is where tumour is as dense as in a blob."""
        tumour, common = probabilities[:, self.zones], np.maximum(probabilities.mean(0), 1e-12)
        near, _ = average_neighborhood(positions, tumour, self.oracle_width, include_self=False)
        near = near - tumour.mean()
        in_blob = max(float(tumour @ near) / max(float(tumour.sum()), 1e-12), 1e-12)
        inside = expit(self.oracle_steepness * (near / in_blob - self.oracle_edge)) + 1e-12
        # Inside a blob the mixture of kinds differs, so their shares are estimated again.
        found = inside.sum() * estimate_kind_shares(probabilities / common, inside)
        return np.asarray(found / (len(positions) * common))

    def _compute_area(self, tumour: int) -> int:
        """Return the area of the blob, with at least one gap for an immune cell."""
        return max(tumour + 1, round(tumour / self.density))


@dataclass(frozen=True, kw_only=True)
class Margin(MarginTask):
    """Task 4: have the immune cells entered the tumour?"""

    name: ClassVar[str] = "margin"
    classes: tuple[str, ...] = ("excluded", "infiltrated")
    infiltration: tuple[Span, Span] = ((0.0, 0.0), (1.0, 1.0))
    """Share of the others that are inside, for each class."""

    def draw_infiltration(self, label: int, random: Random) -> float:
        """Draw from the span of the class."""
        return random.uniform(*self.infiltration[label])

    def score_classes(self, positions: Positions, probabilities: Floats) -> Floats:
        """Score by the share of immune cells inside."""
        return make_two_class_scores(float(self.estimate_inside(positions, probabilities)[-1]))


def draw_count(n: int, share: Span, random: Random) -> int:
    """Draw a count, at least one: n times a share that is log-uniform."""
    low, high = np.log(share)
    return max(1, round(n * float(np.exp(random.uniform(low, high)))))


def scatter_cells(kinds: CellKinds, count: int, kind: int, random: Random) -> None:
    """Assign a kind to ``count`` random positions that have none."""
    free = np.flatnonzero(kinds == UNASSIGNED)
    kinds[random.choice(free, count, replace=False)] = kind


def make_two_class_scores(evidence: float) -> Floats:
    """Return the scores of two classes from the evidence for the second."""
    return np.array([-evidence, evidence])
