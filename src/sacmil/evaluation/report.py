"""The report of an evaluation: one HTML page that needs nothing else, no network and no script."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.atomic import whole_file
from sacmil.evaluation.claims import claims
from sacmil.evaluation.comparison import Comparison, ranks
from sacmil.evaluation.html_page import html_page, safe, section, warned
from sacmil.evaluation.layouts import Cell, Table, render
from sacmil.evaluation.metrics import METRICS, TITLES
from sacmil.evaluation.mistakes import mistake_table
from sacmil.evaluation.plots import (
    draw_calibration,
    draw_confusion,
    draw_ranks,
    draw_roc,
    drawn,
    save_figure,
)
from sacmil.evaluation.summary import Figure
from sacmil.evaluation.tables import (
    Style,
    caption,
    comparison_table,
    fold_table,
    has_intervals,
    summary_table,
)
from sacmil.results import Predictions

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

LONG = 40
"""Tables of more lines are folded up."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a page is made of."""

    title: str
    predictions: Predictions
    figures: Mapping[str, Mapping[str, Figure]]
    """As summarise gives them."""
    comparisons: Sequence[Comparison] = ()
    """As compare gives them, of the metric below."""
    metric: str = "auc"
    asked: Mapping[str, str] = field(default_factory=dict)
    """Settings and versions: a heading, and the text under it as it is."""
    warnings: Sequence[str] = ()
    """What a reader must know before believing anything, such as slides that failed."""
    further: Mapping[str, Table] = field(default_factory=dict)
    """Other tables, by their heading."""
    data: str = ""
    """Where the predictions come from, in a few words."""
    level: float = 0.95
    draws: int = 2000
    style: Style = field(default_factory=Style)

    def caption(self) -> str:
        """Unit, folds, seeds, patients, interval, data."""
        return caption(
            self.predictions,
            data=self.data,
            level=self.level,
            draws=self.draws,
            style=self.style,
            with_intervals=has_intervals(self.figures, self.style),
        )

    def how_compared(self) -> str:
        """How models are compared."""
        text = (
            "Paired permutation test over patients; a difference is claimed when p after Holm's "
            f"correction is below {1 - self.level:.2g}."
        )
        if any(math.isfinite(pair.low + pair.high) for pair in self.comparisons):
            text += f" Intervals: patients resampled, {self.draws:,} draws."
        return text

    @cached_property
    def pictures(self) -> dict[str, Picture]:
        """The plots by file stem, in the order of the page."""
        found = {
            "roc": draw_roc(self.predictions),
            "calibration": draw_calibration(self.predictions),
            "confusion": draw_confusion(self.predictions),
        }
        ranked = bool(self.comparisons) and self.metric in METRICS
        order = ranks(self.predictions, self.metric) if ranked else {}
        if order and all(map(math.isfinite, order.values())):
            found["ranks"] = draw_ranks(
                order, self.comparisons, metric=self.metric, level=self.level
            )
        return found

    @cached_property
    def drawings(self) -> dict[str, bytes]:
        """The same plots as SVG."""
        return {stem: drawn(figure, "svg") for stem, figure in self.pictures.items()}


def write_folder(out: Path, report: Report) -> Path:
    """Write the page, its tables in every format and its plots; the page is the last.

    Args:
        out: folder of report.html, summary and comparison (.csv, .md, .tex), plots/.
        report: what they are made of.
    """
    summary = summary_table(report.figures, caption=report.caption(), style=report.style)
    _write_tables(out / "summary", summary)
    if report.comparisons:
        compared = comparison_table(
            report.comparisons, caption=report.how_compared(), style=report.style
        )
        _write_tables(out / "comparison", compared)
    for heading, table in report.further.items():
        _write_tables(out / heading.lower().replace(" ", "_"), table)
    # the SVG are all drawn first: matplotlib lays out a figure a little differently each time
    for stem, svg in report.drawings.items():
        with whole_file(out / "plots" / f"{stem}.svg") as partial:
            partial.write_bytes(svg)
        save_figure(report.pictures[stem], out / "plots" / f"{stem}.png")
    write_report(out / "report.html", report)
    return out / "report.html"


def _write_tables(stem: Path, table: Table) -> None:
    for layout, suffix in (("csv", ".csv"), ("markdown", ".md"), ("latex", ".tex")):
        with whole_file(stem.with_suffix(suffix)) as partial:
            partial.write_text(render(table, layout), encoding="utf-8")


def write_report(path: str | Path, report: Report) -> None:
    """Write the page, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    """The page as text."""
    body = "\n".join(part for part in _sections(report) if part)
    footer = "For research use; not a medical device."
    return html_page(report.title, body, style=_STYLE, footer=footer)


def _sections(report: Report) -> Iterator[str]:
    yield warned(report.warnings)
    yield section("What was asked", _asked(report.asked))
    summary = summary_table(report.figures, caption=report.caption(), style=report.style)
    yield section("Summary", _table(summary))
    yield section("Who is better than whom, and how sure that is", _compared(report))
    for heading, table in report.further.items():
        yield section(safe(heading), _table(table))
    images = "".join(_image(*named) for named in report.drawings.items())
    yield section("Plots", f'<div class="plots">{images}</div>')
    folds = [_folds(report, metric) for metric in next(iter(report.figures.values()), {})]
    yield section("Fold by fold", "".join(folds))
    yield section("Misclassified", _table(mistake_table(report.predictions)))


def _asked(asked: Mapping[str, str]) -> str:
    return "".join(
        f"<details><summary>{safe(heading)}</summary><pre>{_safe_lines(text)}</pre></details>"
        for heading, text in asked.items()
    )


def _compared(report: Report) -> str:
    if not report.comparisons:
        return ""
    told = claims(report.comparisons, level=report.level, style=report.style)
    sentences = "".join(f"<li>{safe(sentence)}</li>" for sentence in told)
    table = comparison_table(report.comparisons, caption=report.how_compared(), style=report.style)
    return f'<ul class="claims">{sentences}</ul>{_table(table)}'


def _folds(report: Report, metric: str) -> str:
    table = fold_table(report.figures, metric, report.predictions, style=report.style)
    return f"<h3>{safe(TITLES[metric])}</h3>{_table(table)}"


def _table(table: Table) -> str:
    head = "".join(f"<th>{safe(text)}</th>" for text in table.header)
    rows = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    note = f'<p class="note">{safe(table.caption)}</p>' if table.caption else ""
    if not table.rows:
        return note
    shown = (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>'
        "</div>"
    )
    if len(table.rows) > LONG:
        shown = f"<details><summary>{len(table.rows):,} lines</summary>{shown}</details>"
    return shown + note


def _cell(cell: Cell) -> str:
    text = safe(cell.text)
    return f"<td><strong>{text}</strong></td>" if cell.best else f"<td>{text}</td>"


_MEANT = {
    "roc": "ROC curves",
    "calibration": "Calibration",
    "confusion": "Confusion matrices",
    "ranks": "Mean ranks",
}


def _image(stem: str, svg: bytes) -> str:
    # within an image nothing of the drawing can run or be fetched
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    return f'<figure><img alt="{_MEANT[stem]}" src="{source}"></figure>\n'


def _safe_lines(text: str) -> str:
    return "\n".join(safe(line.expandtabs(4)) for line in text.splitlines())


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
