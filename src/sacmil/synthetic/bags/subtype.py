"""Task 2, subtype: the mixture of tumour cells differs; positions carry no information."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from sacmil.errors import ConfigError
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
)


@dataclass(frozen=True, kw_only=True)
class Subtype(SyntheticTask):
    """Task: which subtype is the tumour?

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
        self.require_valid("tumour_share", is_share(self.tumour_share), EXPECTED_SHARES)
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

    def draw_counts(self, n: int, label: int, random: np.random.Generator) -> NDArray[np.int64]:
        """Draw counts; the amount of tumour does not depend on the label, its kinds do."""
        tumour = draw_count(n, self.tumour_share, random)
        shares = random.dirichlet(self._make_dirichlet_parameters()[label])
        kinds = np.diff(np.round(tumour * np.cumsum(shares)).astype(np.int64), prepend=0)
        return np.array([*self.draw_healthy_counts(n - tumour, random), *kinds])

    def place_cells(
        self,
        positions: Positions,
        counts: NDArray[np.int64],
        label: int,
        random: np.random.Generator,
    ) -> CellKinds:
        """Place tumour at random positions."""
        kinds = np.full(len(positions), UNASSIGNED)
        tumour = np.repeat(self.tumor_kinds, counts[self.zones :])
        kinds[random.choice(len(positions), len(tumour), replace=False)] = tumour
        return self.fill_healthy_tissue(kinds, positions, counts, random)

    def score_classes(
        self, positions: Positions, probabilities: KindProbabilities
    ) -> NDArray[np.float64]:
        """Return the log-probability of each class given the shares; exact for known kinds."""
        # a kind without cells still gets some share
        counts = probabilities[:, self.zones :].sum(0) + 0.5
        likelihood = (self._make_dirichlet_parameters() - 1) @ np.log(counts / counts.sum())
        return np.asarray(log_softmax(likelihood))

    def _make_dirichlet_parameters(self) -> NDArray[np.float64]:
        """Return (classes, classes) the Dirichlet parameters of each class."""
        count = len(self.classes)
        return self.other + (self.own - self.other) * np.eye(count)
