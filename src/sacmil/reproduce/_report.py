"""Tables of the paper's means and ours, as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from sacmil.atomic import atomic_write
from sacmil.evaluation.summary import MetricEstimate
from sacmil.evaluation.table_format import (
    UNDEFINED,
    Cell,
    ResultTable,
    TableStyle,
    make_printable,
    render_table,
)
from sacmil.reproduce._paper import DATASETS, METRICS, PaperTable

LINE_WIDTH = 100
LAYOUT_BY_SUFFIX = {"txt": "text", "md": "markdown", "tex": "latex", "csv": "csv"}
"""Layout by file suffix."""
_TITLE_FORMATS = {"text": "{}\n", "markdown": "# {}\n", "latex": "% {}"}
_LATEX_SYMBOLS = str.maketrans(
    {"†": r"$\dagger$", "‡": r"$\ddagger$", "§": r"\S{}", "¶": r"\P{}", "λ": r"$\lambda$"}
)
"""Characters that plain LaTeX lacks."""


class DatasetResult(NamedTuple):
    """Our results on one dataset."""

    description: str
    """Data and protocol of our results."""
    estimates: Mapping[str, Mapping[str, MetricEstimate]]
    """By row and metric; unfinished rows are omitted."""


NOT_RUN = DatasetResult("Not reproduced on this dataset.", {})


def write_tables(
    out: Path, name: str, paper: PaperTable, outcomes: Mapping[str, DatasetResult]
) -> list[Path]:
    """Write the table in every layout, a section per dataset; return the files, text first."""
    tables = {
        dataset: make_comparison_table(paper, dataset, outcome)
        for dataset, outcome in outcomes.items()
    }
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, layout in LAYOUT_BY_SUFFIX.items():
        path = out / f"{name}.{suffix}"
        with atomic_write(path) as partial:
            partial.write_text(_render_document(layout, paper.title, tables), encoding="utf-8")
        written.append(path)
    return written


def make_comparison_table(paper: PaperTable, dataset: str, outcome: DatasetResult) -> ResultTable:
    """Return the table of one dataset, with a row per row of the paper and notes in the caption."""
    header = [
        "",
        *(f"{title} {source}" for title in METRICS.values() for source in ("paper", "ours")),
    ]
    return ResultTable(
        " ".join([outcome.description, *_collect_notes(paper, dataset)]),
        tuple(header),
        tuple(tuple(_make_cells(paper, dataset, row, outcome)) for row in paper.results),
        tuple(_make_records(paper, dataset, outcome)),
    )


def _make_cells(
    paper: PaperTable, dataset: str, row: str, outcome: DatasetResult
) -> Iterator[Cell]:
    style = TableStyle(percent=True, spread="std")
    ours = outcome.estimates.get(row, {})
    yield Cell(row + paper.row_marks[row])
    for metric in METRICS:
        printed = paper.results[row][dataset][metric]
        yield Cell(f"{printed.mean:.1f}{printed.marks}")
        yield Cell(style.format_estimate(ours[metric]) if metric in ours else UNDEFINED)


def _collect_notes(paper: PaperTable, dataset: str) -> list[str]:
    """Return the notes of the marks in one dataset's table."""
    used = "".join(
        paper.find_marks(row, dataset, metric) for row in paper.results for metric in METRICS
    )
    return [f"{mark} In the paper: {note}." for mark, note in paper.notes.items() if mark in used]


def _make_records(
    paper: PaperTable, dataset: str, outcome: DatasetResult
) -> Iterator[dict[str, object]]:
    for row, datasets in paper.results.items():
        for metric, printed in datasets[dataset].items():
            marks = paper.find_marks(row, dataset, metric)
            ours = outcome.estimates.get(row, {}).get(metric)
            yield {
                "dataset": dataset,
                "row": row,
                "metric": metric,
                "paper_mean": printed.mean,
                "paper_std": printed.std,
                "misprint": "; ".join(paper.notes[mark] for mark in marks),
                **{f"ours_{key}": _to_percent(ours, key) for key in ("mean", "std", "low", "high")},
                "about": outcome.description,
            }


def _to_percent(estimate: MetricEstimate | None, key: str) -> float | str:
    return "" if estimate is None else 100 * float(getattr(estimate, key))


# --- layouts -------------------------------------------------------------------------------------


def _render_document(layout: str, title: str, tables: Mapping[str, ResultTable]) -> str:
    if layout == "csv":
        joined = [record for table in tables.values() for record in table.records]
        return render_table(replace(next(iter(tables.values())), records=tuple(joined)), "csv")
    sections = [_render_section(layout, DATASETS[name], table) for name, table in tables.items()]
    text = "\n".join([_TITLE_FORMATS[layout].format(title), *sections])
    return text.translate(_LATEX_SYMBOLS) if layout == "latex" else text


def _render_section(layout: str, heading: str, table: ResultTable) -> str:
    if layout == "latex":
        return render_table(replace(table, caption=f"{heading}. {table.caption}"), layout)
    if layout == "markdown":
        return f"## {heading}\n\n{render_table(table, layout)}"
    wrapped = textwrap.fill(make_printable(table.caption), LINE_WIDTH)
    return f"{heading}\n\n{render_table(replace(table, caption=''), layout)}\n{wrapped}\n"
