"""What a demonstration made: the run returns it, the page shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sacmil.evaluation.localization import Localization
from sacmil.evaluation.report import Report
from sacmil.synthetic.slides import SyntheticSlide
from sacmil.workflows.demo.bags import DemoBags
from sacmil.workflows.demo.folder import DemoFolder


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Results of the demonstration."""

    folder: DemoFolder
    report: Report
    """Of the cross-validation."""
    localization: Mapping[str, Localization]
    """By exported model."""
    bags: DemoBags
    slides: Sequence[SyntheticSlide]
    illustrated_slides: Sequence[SyntheticSlide]
    new_predictions: Mapping[str, str]
    """Predictions of unlabelled slides, by slide."""
    steps_done: Mapping[str, int]
    """Amount of each step done by this run; 0 if everything existed."""
