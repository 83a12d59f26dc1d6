"""What evaluations and comparisons share: predictions of models, their metrics and a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sacmil.evaluation.comparison import PairComparison
from sacmil.evaluation.report import Report
from sacmil.evaluation.summary import DEFAULT_METRICS, MetricEstimate, summarize
from sacmil.evaluation.table_format import TableStyle
from sacmil.results import Predictions, SlideLocalization
from sacmil.workflows.localization_tables import make_localization_tables


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelResults:
    """Predictions of models, and their metrics.

    Metrics are computed on first use: intervals take a while.
    """

    predictions: Predictions
    """On another cohort: one test set, fold 0 and seed 0; a slide that failed has no row."""
    localization: list[SlideLocalization] = field(default_factory=list)
    """A row per model and slide with instance labels."""
    title: str = ""
    data: str = ""
    """Short description of the data."""
    settings: dict[str, str] = field(default_factory=dict)
    """Text of the files with settings and versions, by path."""
    metrics: tuple[str, ...] = DEFAULT_METRICS
    level: float = 0.95
    draws: int = 2000
    seed: int = 0

    @cached_property
    def estimates(self) -> dict[str, dict[str, MetricEstimate]]:
        """Estimates by model and metric."""
        return summarize(self.predictions, metrics=self.metrics, **self._resampling)

    @property
    def _resampling(self) -> dict[str, Any]:
        return {"level": self.level, "draws": self.draws, "seed": self.seed}

    def _build_report(
        self,
        style: TableStyle | None,
        pairs: Sequence[PairComparison],
        *,
        metric: str = "auc",
        warnings: Sequence[str] = (),
    ) -> Report:
        style = style or TableStyle()
        return Report(
            title=self.title,
            predictions=self.predictions,
            estimates=self.estimates,
            comparisons=pairs,
            metric=metric,
            settings=self.settings,
            warnings=warnings,
            extra_tables=make_localization_tables(
                self.localization, self.predictions, style, **self._resampling
            ),
            data=self.data,
            level=self.level,
            draws=self.draws,
            style=style,
        )
