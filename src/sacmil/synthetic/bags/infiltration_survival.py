"""Survival of patients whose hazard depends on how many immune cells have entered the tumour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.optimize import brentq

from sacmil.cohorts.cohort import Label
from sacmil.errors import ConfigError
from sacmil.metrics.survival import harrell_c
from sacmil.synthetic.bags.infiltration import InfiltrationTask
from sacmil.synthetic.bags.tasks import Floats, Limits, Positions, Random
from sacmil.tasks import Survival, Task

TIME_COLUMN, EVENT_COLUMN = "OS_MONTHS", "OS_STATUS"
"""Columns of a table of cBioPortal; 1 is an event."""
_SHORTEST_MONTHS = 0.01
"""The least time in a table; a time of 0 would be left out."""


class SurvivalTruth(NamedTuple):
    """What decides about a patient; the table has the first two only."""

    months: float
    event: float
    """1 if the event happened then, 0 if the patient was censored."""
    infiltration: float
    """The share of immune cells inside the tumour."""


@dataclass(frozen=True, kw_only=True)
class InfiltrationSurvival(InfiltrationTask):
    """Task 10: how long do patients live, if immune cells in the tumour lower the hazard?

    The logarithm of the hazard falls linearly with the share of immune cells inside the tumour. The
    time until the event is exponential. Patients are recruited evenly until the study ends, which
    censors those who are still alive, whatever their hazard.
    """

    name: ClassVar[str] = "infiltration_survival"
    limits: ClassVar[Mapping[str, Limits]] = {
        **InfiltrationTask.limits,
        "log_hazard_ratio": Limits(0, 20, "0 to 20"),
        "median_months": Limits(0, inf, "above 0", excluded=(0, inf)),
        "censored": Limits(0.05, 0.95, "0.05 to 0.95"),
    }
    log_hazard_ratio: float = 4.5
    """Of the lowest infiltration against the highest."""
    median_months: float = 24.0
    """Of patients halfway between them."""
    censored: float = 0.4
    """Expected share of censored patients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classes:
            raise ConfigError(
                f"{self.name} has times, not the classes {', '.join(self.classes)}; leave them out"
            )

    @property
    def target_task(self) -> Task:
        """Months until the event."""
        return Survival(TIME_COLUMN, EVENT_COLUMN, unit="months")

    @property
    def groups(self) -> int:
        """One."""
        return 1

    def draw_label(self, group: int, random: Random) -> SurvivalTruth:
        """Draw the infiltration, and the time given the infiltration."""
        share, unit = self.draw_share(random), self.median_months / log(2)
        event = random.exponential(np.exp(-self.get_log_hazard(share)))
        last = random.uniform(0, find_follow_up(self.log_hazard_ratio, self.censored))
        months = max(_SHORTEST_MONTHS, round(unit * min(event, last), 2))
        return SurvivalTruth(months, float(event <= last), share)

    def hide_label(self, label: Label, random: Random) -> Label:
        """Return time and event, without the infiltration."""
        assert isinstance(label, SurvivalTruth)
        return (label.months, label.event)

    def draw_infiltration(self, label: Sequence[float], random: Random) -> float:
        """Return the infiltration, which is last."""
        return label[-1]

    def get_log_hazard(self, share: float) -> float:
        """Return the log hazard of an infiltration; 0 is halfway."""
        low, high = self.infiltration
        return self.log_hazard_ratio * ((low + high) / 2 - share) / max(high - low, 1e-12)

    def score_classes(self, positions: Positions, probabilities: Floats) -> Floats:
        """Return the log hazard."""
        return np.array([self.get_log_hazard(self.estimate_share(positions, probabilities))])

    def measure_oracle(self, labels: Sequence[Any], scores: Floats) -> dict[str, float]:
        """Return Harrell's c of the scores and of the true hazard, which no model exceeds."""
        times, events, shares = np.transpose(labels)
        hazards = [self.get_log_hazard(share) for share in shares]
        return {
            "c": harrell_c(times, events, scores[:, 0]),
            "c_true_hazard": harrell_c(times, events, hazards),
        }


@lru_cache(maxsize=64)
def find_follow_up(log_hazard_ratio: float, censored: float) -> float:
    """Return the length of a study that censors this share, if the mean log hazard is 0.

    A patient of hazard h who is recruited at any time of a study of length T is censored with the
    probability (1 - exp(-h T)) / (h T).
    """
    hazards = np.exp(log_hazard_ratio * (np.arange(1000) + 0.5 - 500) / 1000)

    def excess(log_length: float) -> float:
        passed = hazards * np.exp(log_length)
        return float(np.mean(-np.expm1(-passed) / passed)) - censored

    return float(np.exp(brentq(excess, -20, 20)))
