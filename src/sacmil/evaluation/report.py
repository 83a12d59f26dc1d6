"""The report of an evaluation: one self-contained HTML page without scripts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.atomic import write_file
from sacmil.errors import OptionError
from sacmil.evaluation import tables
from sacmil.evaluation.comparison import PairComparison, list_conclusions, mean_ranks
from sacmil.evaluation.html_page import render_page
from sacmil.evaluation.metrics import METRIC_TITLES, METRICS
from sacmil.evaluation.plots import (
    draw_calibration,
    draw_confusion,
    draw_ranks,
    draw_roc,
    render_figure,
    save_figure,
)
from sacmil.evaluation.table_format import DEFAULT_STYLE, ResultTable, TableStyle, render_table
from sacmil.evaluation.tables import Estimates
from sacmil.results import Predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PLOT_TITLES = {
    "roc": "ROC curves",
    "calibration": "Calibration",
    "confusion": "Confusion matrices",
    "ranks": "Mean ranks",
}
_SUFFIXES = {"csv": ".csv", "markdown": ".md", "latex": ".tex"}
"""By layout, the suffix of a table's file."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Content of a report page."""

    title: str
    predictions: Predictions
    estimates: Estimates
    """By model and metric, from summarize."""
    comparisons: Sequence[PairComparison] = ()
    """From compare_models, of the metric below."""
    metric: str = "auc"
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings and versions: text by heading."""
    warnings: Sequence[str] = ()
    """Warnings at the top of the page, such as failed slides."""
    extra_tables: Mapping[str, ResultTable] = field(default_factory=dict)
    """Other tables, by their heading."""
    data: str = ""
    """Short description of the predictions' source."""
    level: float = 0.95
    draws: int = 2000
    style: TableStyle = DEFAULT_STYLE

    @cached_property
    def summary(self) -> ResultTable:
        """The metrics of each model; the caption has unit, folds, seeds, patients and data."""
        caption = tables.make_caption(
            self.predictions,
            data=self.data,
            level=self.level,
            draws=self.draws,
            style=self.style,
            with_intervals=tables.has_intervals(self.estimates, self.style),
        )
        return tables.summary_table(self.estimates, caption=caption, style=self.style)

    @cached_property
    def comparison(self) -> ResultTable:
        """The compared pairs; the caption describes the test."""
        text = (
            "Paired permutation test over patients; a difference is significant if p after Holm's "
            f"correction is below {1 - self.level:.2g}."
        )
        if any(math.isfinite(pair.low + pair.high) for pair in self.comparisons):
            text += f" Intervals: patients resampled, {self.draws:,} draws."
        return tables.comparison_table(self.comparisons, caption=text, style=self.style)

    @property
    def conclusions(self) -> list[str]:
        """The comparisons as sentences."""
        return list_conclusions(self.comparisons, level=self.level, style=self.style)

    @cached_property
    def plots(self) -> dict[str, Figure]:
        """The plots by file stem, in page order."""
        found = {
            "roc": draw_roc(self.predictions),
            "calibration": draw_calibration(self.predictions),
            "confusion": draw_confusion(self.predictions),
        }
        ranked = bool(self.comparisons) and self.metric in METRICS
        order = mean_ranks(self.predictions, self.metric) if ranked else {}
        if order and all(map(math.isfinite, order.values())):
            found["ranks"] = draw_ranks(
                order, self.comparisons, metric=self.metric, level=self.level
            )
        return found

    @cached_property
    def svg_plots(self) -> dict[str, bytes]:
        """The same plots as SVG."""
        return {stem: render_figure(figure, "svg") for stem, figure in self.plots.items()}


def write_report_folder(out: Path, report: Report) -> Path:
    """Write the tables in every format, the plots and last the page; return the page's path.

    Args:
        out: folder for report.html, summary and comparison (.csv, .md, .tex), plots/.
        report: content.
    """
    if out.exists() and not out.is_dir():
        raise OptionError(f"{out}: is a file; expected a folder for the report")
    written = {"summary": report.summary}
    if report.comparisons:
        written["comparison"] = report.comparison
    for heading, table in report.extra_tables.items():
        written[heading.lower().replace(" ", "_")] = table
    for stem, table in written.items():
        for layout, suffix in _SUFFIXES.items():
            write_file(out / f"{stem}{suffix}", render_table(table, layout))
    # draw all SVGs first: matplotlib lays out a figure slightly differently each time
    for stem, svg in report.svg_plots.items():
        write_file(out / "plots" / f"{stem}.svg", svg)
        save_figure(report.plots[stem], out / "plots" / f"{stem}.png")
    page = out / "report.html"
    write_file(page, render_report(report))
    return page


def render_report(report: Report) -> str:
    """Return the page as text."""
    fold_tables = {
        METRIC_TITLES[metric]: tables.fold_table(
            report.estimates, metric, report.predictions, style=report.style
        )
        for metric in next(iter(report.estimates.values()), {})
    }
    return render_page(
        "report.html",
        title=report.title,
        warnings=report.warnings,
        report=report,
        plot_titles=_PLOT_TITLES,
        fold_tables=fold_tables,
        misclassified=tables.misclassified_table(report.predictions),
    )
