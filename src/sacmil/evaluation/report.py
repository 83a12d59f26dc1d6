"""The report of an evaluation: one HTML page that needs nothing else, no network and no script."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil._version import __version__
from sacmil.atomic import whole_file
from sacmil.evaluation.claims import claims
from sacmil.evaluation.comparison import Comparison, ranks
from sacmil.evaluation.metrics import TITLES
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
    Cell,
    Style,
    Table,
    caption,
    comparison_table,
    fold_table,
    printable,
    render,
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
        )

    def how_compared(self) -> str:
        """How models are compared."""
        return (
            f"Paired bootstrap of patients within folds, at least {self.draws:,} draws; a "
            f"difference is claimed when p after Holm's correction is below {1 - self.level:.2g}."
        )

    @cached_property
    def pictures(self) -> dict[str, Picture]:
        """The plots by file stem, in the order of the page."""
        found = {
            "roc": draw_roc(self.predictions),
            "calibration": draw_calibration(self.predictions),
            "confusion": draw_confusion(self.predictions),
        }
        order = ranks(self.predictions, self.metric) if self.comparisons else {}
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
    title = _safe(report.title)
    body = "\n".join(part for part in _sections(report) if part)
    return _PAGE.format(title=title, style=_STYLE, body=body, version=_safe(__version__))


def _sections(report: Report) -> Iterator[str]:
    yield "".join(f'<p class="warning">{_safe(text)}</p>' for text in report.warnings)
    yield _section("What was asked", _asked(report.asked))
    summary = summary_table(report.figures, caption=report.caption(), style=report.style)
    yield _section("Summary", _table(summary))
    yield _section("Who is better than whom, and how sure that is", _compared(report))
    for heading, table in report.further.items():
        yield _section(_safe(heading), _table(table))
    images = "".join(_image(*named) for named in report.drawings.items())
    yield _section("Plots", f'<div class="plots">{images}</div>')
    folds = [_folds(report, metric) for metric in next(iter(report.figures.values()), {})]
    yield _section("Fold by fold", "".join(folds))
    yield _section("Misclassified", _table(mistake_table(report.predictions)))


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{heading}</h2>\n{content}</section>" if content else ""


def _asked(asked: Mapping[str, str]) -> str:
    return "".join(
        f"<details><summary>{_safe(heading)}</summary><pre>{_safe_lines(text)}</pre></details>"
        for heading, text in asked.items()
    )


def _compared(report: Report) -> str:
    if not report.comparisons:
        return ""
    told = claims(report.comparisons, level=report.level, style=report.style)
    sentences = "".join(f"<li>{_safe(sentence)}</li>" for sentence in told)
    table = comparison_table(report.comparisons, caption=report.how_compared(), style=report.style)
    return f'<ul class="claims">{sentences}</ul>{_table(table)}'


def _folds(report: Report, metric: str) -> str:
    table = fold_table(report.figures, metric, report.predictions, style=report.style)
    return f"<h3>{_safe(TITLES[metric])}</h3>{_table(table)}"


def _table(table: Table) -> str:
    head = "".join(f"<th>{_safe(text)}</th>" for text in table.header)
    rows = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    note = f'<p class="note">{_safe(table.caption)}</p>' if table.caption else ""
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
    text = _safe(cell.text)
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


def _safe(text: str) -> str:
    return escape(printable(text))


def _safe_lines(text: str) -> str:
    return "\n".join(_safe(line.expandtabs(4)) for line in text.splitlines())


_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 0 auto;
  padding: 1.5rem 1.25rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .5rem 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; padding-bottom: .25rem;
  border-bottom: 2px solid #0072b2; }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .25rem 0; }
th, td { text-align: left; padding: .35rem 1.4rem .35rem 0; border-bottom: 1px solid #e4e4e4;
  white-space: nowrap; }
th { font-weight: 600; color: #444; border-bottom-color: #999; }
.note, footer { color: #555; font-size: .875rem; }
.warning { background: #fff4e0; border-left: 4px solid #e69f00; padding: .6rem 1rem; }
.claims li { margin: .3rem 0; }
pre { background: #f6f6f6; padding: .8rem 1rem; overflow-x: auto; font-size: .8rem; }
summary { cursor: pointer; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr));
  gap: 1.5rem 2rem; align-items: start; }
figure { margin: 0; break-inside: avoid; }
img { max-width: 100%; height: auto; }
@media print { body { font-size: 10pt; max-width: none; padding: 0; } .wide { overflow: visible; }
  h2, h3 { break-after: avoid; } tr { break-inside: avoid; } td, th { padding-right: .8rem; } }
"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style></head><body>
<h1>{title}</h1>
{body}
<footer><p>Made by sacmil {version}. For research use; not a medical device.</p></footer>
</body></html>
"""
