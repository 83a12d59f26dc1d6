"""A synthetic task: the count of each kind of cell, their positions, and the oracle's scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sacmil.errors import ConfigError
from sacmil.synthetic.tissue_shape import make_smooth_noise

Positions = NDArray[np.int64]
"""(N, 2), patch-grid coordinates."""
CellKinds = NDArray[np.int64]
"""(N,), the kind of cell of every instance: an index into the task's kinds."""
KindProbabilities = NDArray[np.float64]
"""(N, kinds), probability of each kind for every instance; 0 or 1 if the truth is known."""
Span = tuple[float, float]
"""Lowest and highest value; a slide's value is uniform between them."""

TISSUES = ("stroma", "epithelium", "muscle", "lymphoid")
"""Kinds of healthy tissue; a task uses as many as it has zones."""
ZONE_PATCHES = 25
UNASSIGNED = -1
EXPECTED_SHARES = "lowest and highest share, above 0 and up to 1"
EXPECTED_FRACTIONS = "lowest and highest fraction, from 0 to 1, for each of two classes"


@dataclass(frozen=True, kw_only=True)
class SyntheticTask(ABC):
    """The settings of a task, and how its slides are made."""

    name: ClassVar[str]
    classes: tuple[str, ...] = ()
    """Names of the labels."""
    contrast: float = 2.0
    """Distance between any two kinds of cells in standard deviations of the noise."""
    zones: int = 3
    """Kinds of healthy tissue, each in its own area of the slide."""

    def __post_init__(self) -> None:
        self.require_valid("zones", 1 <= self.zones <= len(TISSUES), f"1 to {len(TISSUES)}")
        self.require_valid("contrast", self.contrast >= 0, "0 or more")

    def require_valid(self, name: str, is_valid: bool, expected: str) -> None:  # noqa: FBT001 - read aloud
        """Raise an error for an invalid setting."""
        if not is_valid:
            raise ConfigError(f"{name} is {getattr(self, name)!r}; expected {expected}")

    @property
    @abstractmethod
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds of cells; healthy tissue first."""

    @property
    def tumor_kinds(self) -> tuple[int, ...]:
        """Indices of the kinds that are tumour."""
        return (self.zones,)

    @abstractmethod
    def draw_counts(self, n: int, label: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Draw how many of n instances are of each kind."""

    @abstractmethod
    def place_cells(
        self,
        positions: Positions,
        counts: NDArray[np.int64],
        label: int,
        random: np.random.Generator,
    ) -> CellKinds:
        """Assign a kind to every position, exactly ``counts`` of each."""

    @abstractmethod
    def score_classes(
        self, positions: Positions, probabilities: KindProbabilities
    ) -> NDArray[np.float64]:
        """Return one score per class, computed with full knowledge of how slides are made."""

    def make_prototypes(self, dim: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return (kinds, dim) the mean feature of each kind, a simplex with edge ``contrast``."""
        kinds = len(self.kinds)
        if dim < kinds:
            raise ConfigError(
                f"dim is {dim}; {self.name} has {kinds} kinds of cells, expected at least {kinds}"
            )
        directions, _ = np.linalg.qr(random.standard_normal((dim, kinds)))
        return np.asarray(directions.T * self.contrast / np.sqrt(2))

    def draw_healthy_counts(self, total: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Divide the healthy cells among the zones, unevenly."""
        weights = random.uniform(0.5, 1.5, self.zones)
        cuts = np.round(total * np.cumsum(weights) / weights.sum()).astype(np.int64)
        return np.asarray(np.diff(cuts, prepend=0))

    def fill_healthy_tissue(
        self,
        kinds: CellKinds,
        positions: Positions,
        counts: NDArray[np.int64],
        random: np.random.Generator,
    ) -> CellKinds:
        """Assign the positions that are still empty to healthy tissue, zone by zone."""
        side = int(positions.max()) + 1
        height = make_smooth_noise(random, side, ZONE_PATCHES)[positions[:, 0], positions[:, 1]]
        empty = np.flatnonzero(kinds == UNASSIGNED)
        in_order = empty[np.argsort(height[empty], kind="stable")]
        kinds[in_order] = np.repeat(np.arange(self.zones), counts[: self.zones])
        return kinds


def is_share(span: Span) -> bool:
    """Whether a span is of shares above 0, as logarithms need."""
    return 0 < span[0] <= span[1] <= 1


def is_fraction(span: Span) -> bool:
    """Whether a span is of fractions from 0 to 1."""
    return 0 <= span[0] <= span[1] <= 1


def draw_count(n: int, share: Span, random: np.random.Generator) -> int:
    """Draw a count, at least one: n times a share that is log-uniform."""
    low, high = np.log(share)
    return max(1, round(n * float(np.exp(random.uniform(low, high)))))


def make_two_class_scores(evidence: float) -> NDArray[np.float64]:
    """Return the scores of two classes from the evidence for the second."""
    return np.array([-evidence, evidence])
