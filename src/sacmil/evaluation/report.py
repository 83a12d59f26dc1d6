"""The report of an evaluation: one self-contained HTML page without scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sacmil.atomic import write_file
from sacmil.errors import OptionError
from sacmil.evaluation import tables
from sacmil.evaluation.comparison import PairComparison, list_conclusions, mean_ranks
from sacmil.evaluation.html_page import render_page
from sacmil.evaluation.plots import (
    draw_calibration,
    draw_confusion,
    draw_ranks,
    draw_roc,
    render_figure,
)
from sacmil.evaluation.survival import risk_by_patient_table, risk_group_table
from sacmil.evaluation.survival_plots import (
    draw_auc_over_time,
    draw_kaplan_meier,
    draw_survival_calibration,
)
from sacmil.evaluation.table_format import DEFAULT_STYLE, ResultTable, TableStyle, render_table
from sacmil.evaluation.tables import Estimates
from sacmil.evaluation.value_plots import draw_label_roc, draw_residuals, draw_scatter
from sacmil.results import Predictions
from sacmil.tasks import from_card

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Plot(NamedTuple):
    """A plot that a task may ask for."""

    title: str
    draw: Callable[[Predictions], Figure]


PLOTS = {
    "roc": Plot("ROC curves", draw_roc),
    "calibration": Plot("Calibration", draw_calibration),
    "confusion": Plot("Confusion matrices", draw_confusion),
    "scatter": Plot("Predicted and true", draw_scatter),
    "residuals": Plot("Residuals", draw_residuals),
    "label_roc": Plot("ROC curves by label", draw_label_roc),
    "kaplan_meier": Plot("Survival by predicted risk", draw_kaplan_meier),
    "auc_over_time": Plot("AUC over time", draw_auc_over_time),
    "survival_calibration": Plot("Calibration of survival", draw_survival_calibration),
}
"""By file stem."""


class TaskTable(NamedTuple):
    """A table that a task may ask for."""

    title: str
    make: Callable[[Predictions, TableStyle], ResultTable]
    is_shown: bool = True
    """Whether it is on the page; otherwise it is a file for spreadsheets only."""


TABLES = {
    "risk_groups": TaskTable("Risk groups", risk_group_table),
    "risk_by_patient": TaskTable("Risk by patient", risk_by_patient_table, is_shown=False),
}
"""By file stem."""
_HALF_PAGE_INCHES = 7.0
"""Broadest figure whose text is still readable on half of the page."""
_PAGE = "report.html"
_RANKS_TITLE = "Mean ranks"
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
    metric: str | None = None
    """None means the headline of the task."""
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
        task = from_card(self.predictions.task)
        found = {name: PLOTS[name].draw(self.predictions) for name in task.plots}
        metric = self.metric or task.headline
        ranked = bool(self.comparisons) and metric in task.metrics
        order = mean_ranks(self.predictions, metric) if ranked else {}
        if order and all(map(math.isfinite, order.values())):
            title = task.metrics[metric].title
            found["ranks"] = draw_ranks(order, self.comparisons, title=title, level=self.level)
        return found

    @cached_property
    def data_tables(self) -> dict[str, ResultTable]:
        """Tables that are files only, by file stem."""
        wanted = {name: TABLES[name] for name in from_card(self.predictions.task).tables}
        return {
            name: table.make(self.predictions, self.style)
            for name, table in wanted.items()
            if not table.is_shown
        }

    @cached_property
    def svg_plots(self) -> dict[str, bytes]:
        """The same plots as SVG."""
        return {stem: render_figure(figure, "svg") for stem, figure in self.plots.items()}

    @property
    def broad_plots(self) -> list[str]:
        """File stems of plots that are too broad for half of the page."""
        return [stem for stem, one in self.plots.items() if one.get_figwidth() > _HALF_PAGE_INCHES]


def make_task_tables(predictions: Predictions, style: TableStyle) -> dict[str, ResultTable]:
    """Return the tables of the task's own that a page shows, by their heading."""
    wanted = [TABLES[name] for name in from_card(predictions.task).tables]
    return {table.title: table.make(predictions, style) for table in wanted if table.is_shown}


def write_report_folder(out: Path, report: Report) -> Path:
    """Write the tables in every format, the plots and last the page; return the page's path.

    Nothing is written before everything is made.

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
    files: dict[str, str | bytes] = {
        f"{stem}{suffix}": render_table(table, layout)
        for stem, table in written.items()
        for layout, suffix in _SUFFIXES.items()
    }
    for stem, table in report.data_tables.items():
        files[f"{stem}.csv"] = render_table(table, "csv")
    # draw all SVGs first: matplotlib lays out a figure slightly differently each time
    files |= {f"plots/{stem}.svg": svg for stem, svg in report.svg_plots.items()}
    for stem, figure in report.plots.items():
        files[f"plots/{stem}.png"] = render_figure(figure, "png")
    files[_PAGE] = render_report(report)
    for name, content in files.items():  # once all are made: an error leaves no part of a report
        write_file(out / name, content)
    return out / _PAGE


def render_report(report: Report) -> str:
    """Return the page as text."""
    fold_tables = {
        one.title: tables.fold_table(
            report.estimates, metric, report.predictions, style=report.style
        )
        for metric, one in next(iter(report.estimates.values()), {}).items()
    }
    has_levels = bool(report.predictions.classes)
    return render_page(
        _PAGE,
        title=report.title,
        warnings=report.warnings,
        report=report,
        plot_titles={name: plot.title for name, plot in PLOTS.items()} | {"ranks": _RANKS_TITLE},
        fold_tables=fold_tables,
        misclassified=tables.misclassified_table(report.predictions) if has_levels else None,
    )
