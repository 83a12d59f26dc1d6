"""The report of an evaluation: one self-contained HTML page without scripts."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.atomic import atomic_write
from sacmil.errors import OptionError
from sacmil.evaluation.comparison import PairComparison, mean_ranks
from sacmil.evaluation.conclusions import list_conclusions
from sacmil.evaluation.html_page import escape_text, render_page, render_section, render_warnings
from sacmil.evaluation.metrics import METRIC_TITLES, METRICS
from sacmil.evaluation.misclassified import misclassified_table
from sacmil.evaluation.plots import (
    draw_calibration,
    draw_confusion,
    draw_ranks,
    draw_roc,
    render_figure,
    save_figure,
)
from sacmil.evaluation.summary import MetricEstimate
from sacmil.evaluation.table_format import Cell, ResultTable, render_table
from sacmil.evaluation.tables import (
    TableStyle,
    comparison_table,
    fold_table,
    has_intervals,
    make_caption,
    summary_table,
)
from sacmil.results import Predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_UNFOLDED_ROWS = 40
"""Maximum number of rows of a table that is not folded up."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Content of a report page."""

    title: str
    predictions: Predictions
    estimates: Mapping[str, Mapping[str, MetricEstimate]]
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
    style: TableStyle = field(default_factory=TableStyle)

    def make_summary_caption(self) -> str:
        """Return the caption: unit, folds, seeds, patients, interval and data."""
        return make_caption(
            self.predictions,
            data=self.data,
            level=self.level,
            draws=self.draws,
            style=self.style,
            with_intervals=has_intervals(self.estimates, self.style),
        )

    def describe_comparison(self) -> str:
        """Return a description of the test."""
        text = (
            "Paired permutation test over patients; a difference is significant if p after Holm's "
            f"correction is below {1 - self.level:.2g}."
        )
        if any(math.isfinite(pair.low + pair.high) for pair in self.comparisons):
            text += f" Intervals: patients resampled, {self.draws:,} draws."
        return text

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
    summary = summary_table(
        report.estimates, caption=report.make_summary_caption(), style=report.style
    )
    _write_tables(out / "summary", summary)
    if report.comparisons:
        compared = comparison_table(
            report.comparisons, caption=report.describe_comparison(), style=report.style
        )
        _write_tables(out / "comparison", compared)
    for heading, table in report.extra_tables.items():
        _write_tables(out / heading.lower().replace(" ", "_"), table)
    # draw all SVGs first: matplotlib lays out a figure slightly differently each time
    for stem, svg in report.svg_plots.items():
        with atomic_write(out / "plots" / f"{stem}.svg") as partial:
            partial.write_bytes(svg)
        save_figure(report.plots[stem], out / "plots" / f"{stem}.png")
    write_report(out / "report.html", report)
    return out / "report.html"


def _write_tables(stem: Path, table: ResultTable) -> None:
    for layout, suffix in (("csv", ".csv"), ("markdown", ".md"), ("latex", ".tex")):
        with atomic_write(stem.with_suffix(suffix)) as partial:
            partial.write_text(render_table(table, layout), encoding="utf-8")


def write_report(path: str | Path, report: Report) -> None:
    """Write the page atomically."""
    with atomic_write(path) as partial:
        partial.write_text(render_report(report), encoding="utf-8")


def render_report(report: Report) -> str:
    """Return the page as text."""
    body = "\n".join(section for section in _render_sections(report) if section)
    footer = "For research use; not a medical device."
    return render_page(report.title, body, style=_STYLE, footer=footer)


def _render_sections(report: Report) -> Iterator[str]:
    yield render_warnings(report.warnings)
    yield render_section("Settings", _render_settings(report.settings))
    summary = summary_table(
        report.estimates, caption=report.make_summary_caption(), style=report.style
    )
    yield render_section("Summary", _render_html_table(summary))
    yield render_section("Comparison", _render_comparisons(report))
    for heading, table in report.extra_tables.items():
        yield render_section(escape_text(heading), _render_html_table(table))
    images = "".join(_render_image(*named) for named in report.svg_plots.items())
    yield render_section("Plots", f'<div class="plots">{images}</div>')
    folds = [
        _render_fold_table(report, metric) for metric in next(iter(report.estimates.values()), {})
    ]
    yield render_section("Fold by fold", "".join(folds))
    yield render_section(
        "Misclassified", _render_html_table(misclassified_table(report.predictions))
    )


def _render_settings(settings: Mapping[str, str]) -> str:
    return "".join(
        f"<details><summary>{escape_text(heading)}</summary><pre>{_escape_lines(text)}</pre></details>"
        for heading, text in settings.items()
    )


def _render_comparisons(report: Report) -> str:
    if not report.comparisons:
        return ""
    conclusions = list_conclusions(report.comparisons, level=report.level, style=report.style)
    sentences = "".join(f"<li>{escape_text(sentence)}</li>" for sentence in conclusions)
    table = comparison_table(
        report.comparisons, caption=report.describe_comparison(), style=report.style
    )
    return f'<ul class="claims">{sentences}</ul>{_render_html_table(table)}'


def _render_fold_table(report: Report, metric: str) -> str:
    table = fold_table(report.estimates, metric, report.predictions, style=report.style)
    return f"<h3>{escape_text(METRIC_TITLES[metric])}</h3>{_render_html_table(table)}"


def _render_html_table(table: ResultTable) -> str:
    head = "".join(f"<th>{escape_text(text)}</th>" for text in table.header)
    rows = "\n".join(f"<tr>{''.join(map(_render_cell, row))}</tr>" for row in table.rows)
    note = f'<p class="note">{escape_text(table.caption)}</p>' if table.caption else ""
    if not table.rows:
        return note
    shown = (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>'
        "</div>"
    )
    if len(table.rows) > MAX_UNFOLDED_ROWS:
        shown = f"<details><summary>{len(table.rows):,} lines</summary>{shown}</details>"
    return shown + note


def _render_cell(cell: Cell) -> str:
    text = escape_text(cell.text)
    return f"<td><strong>{text}</strong></td>" if cell.best else f"<td>{text}</td>"


_PLOT_TITLES = {
    "roc": "ROC curves",
    "calibration": "Calibration",
    "confusion": "Confusion matrices",
    "ranks": "Mean ranks",
}


def _render_image(stem: str, svg: bytes) -> str:
    # inside an image the SVG can neither run scripts nor fetch anything
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    return f'<figure><img alt="{_PLOT_TITLES[stem]}" src="{source}"></figure>\n'


def _escape_lines(text: str) -> str:
    return "\n".join(escape_text(line.expandtabs(4)) for line in text.splitlines())


_STYLE = """
.wide { overflow-x: auto; }
th, td { white-space: nowrap; }
.claims li { margin: .3rem 0; }
pre { background: #f6f6f6; padding: .8rem 1rem; overflow-x: auto; font-size: .8rem; }
summary { cursor: pointer; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr));
  gap: 1.5rem 2rem; align-items: start; }
@media print { .wide { overflow: visible; } }
"""
