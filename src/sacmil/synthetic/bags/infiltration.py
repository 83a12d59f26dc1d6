"""How many immune cells have entered the tumour, as a number or as levels in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sacmil.cohorts.cohort import Label
from sacmil.errors import ConfigError
from sacmil.metrics.ordinal import mae, quadratic_kappa
from sacmil.metrics.regression import r2, spearman
from sacmil.synthetic.bags.tasks import (
    Floats,
    Limits,
    MarginTask,
    Positions,
    Random,
    Span,
)
from sacmil.tasks import Ordinal, Regression, Task

GRADES = ("minimal", "mild", "moderate", "marked")


@dataclass(frozen=True, kw_only=True)
class InfiltrationTask(MarginTask):
    """A share of the immune cells has entered the tumour; what a patient has follows from it."""

    limits: ClassVar[Mapping[str, Limits]] = {
        **MarginTask.limits,
        "infiltration": Limits(0, 1, "lowest and highest share, from 0 to 1"),
        "stray": Limits(0, 1, "0 or more and below 1", excluded=(1,)),
    }
    tumour_share: Span = (0.15, 0.25)
    lesions: int = 1
    density: float = 0.5
    immune_share: float = 0.6
    infiltration: Span = (0.0, 1.0)
    """Lowest and highest share of immune cells inside, of those that are not stray."""

    def draw_share(self, random: Random) -> float:
        """Draw the share, in thousandths."""
        return round(random.uniform(*self.infiltration), 3)

    def estimate_share(self, positions: Positions, probabilities: Floats) -> float:
        """Return the share of immune cells inside, without the stray, by that of tumour.

        Stray immune cells are anywhere that healthy tissue is.
        """
        inside, counts = self.estimate_inside(positions, probabilities), probabilities.sum(0)
        healthy = np.average(inside[: self.zones], weights=counts[: self.zones] + 1e-12)
        immune = (inside[-1] - self.stray * healthy) / (1 - self.stray)
        return float(np.clip(immune / inside[self.zones], *self.infiltration))


@dataclass(frozen=True, kw_only=True)
class Infiltration(InfiltrationTask):
    """Task 8: which share of the immune cells has entered the tumour?

    The target is the share. If ``classes`` names levels, it is one of these: the share cut into as
    many spans of equal width, lowest first.
    """

    name: ClassVar[str] = "infiltration"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.classes) == 1:
            raise ConfigError(
                f"infiltration has one level, {self.classes[0]!r}; expected two or more, or none "
                "for a number"
            )

    @property
    def target_task(self) -> Task:
        """The share, or its level."""
        return Ordinal(self.classes) if self.classes else Regression(self.name)

    @property
    def groups(self) -> int:
        """One for each level."""
        return max(1, len(self.classes))

    def draw_label(self, group: int, random: Random) -> Label:
        """Draw the share, in thousandths; a level is that of the group."""
        return group if self.classes else (self.draw_share(random),)

    def draw_infiltration(self, label: Label, random: Random) -> float:
        """Return the share; draw it from the span of a level."""
        if isinstance(label, tuple):
            return label[0]
        return random.uniform(*self._edges[label : label + 2])

    def score_classes(self, positions: Positions, probabilities: Floats) -> Floats:
        """Return the share."""
        return np.array([self.estimate_share(positions, probabilities)])

    def measure_oracle(self, labels: Sequence[Any], scores: Floats) -> dict[str, float]:
        """Return R² and Spearman's correlation, or kappa and the mean error of the levels."""
        if not self.classes:
            values = np.concatenate(labels)
            return {"r2": r2(values, scores[:, 0]), "spearman": spearman(values, scores[:, 0])}
        levels = np.searchsorted(self._edges[1:-1], scores[:, 0], side="right")
        kappa = quadratic_kappa(labels, levels, len(self.classes))
        return {"kappa": kappa, "mae": mae(labels, levels)}

    @property
    def _edges(self) -> Floats:
        """Lowest share, cuts between levels, and highest share."""
        return np.linspace(*self.infiltration, self.groups + 1)
