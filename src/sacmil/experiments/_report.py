"""The paper's means beside ours, as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sacmil.atomic import whole_file
from sacmil.experiments._paper import DATASETS, METRICS, PaperTable

if TYPE_CHECKING:
    from sacmil.evaluation.layouts import Cell, Table
    from sacmil.evaluation.summary import Figure

WIDTH = 100
FILES = {"txt": "text", "md": "markdown", "tex": "latex", "csv": "csv"}
"""The layout of each file."""


class Outcome(NamedTuple):
    """What came out for one dataset."""

    about: str
    """What ours was measured on, and how."""
    figures: Mapping[str, Mapping[str, Figure]]
    """By row and metric; rows that did not come out are left out."""


NOT_RUN = Outcome("Ours was not run on it.", {})


def write_report(
    out: Path, name: str, paper: PaperTable, outcomes: Mapping[str, Outcome]
) -> list[Path]:
    """Write the table in every layout, a part for each dataset; text comes first."""
    tables = {
        dataset: paper_table(paper, dataset, outcome) for dataset, outcome in outcomes.items()
    }
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, layout in FILES.items():
        path = out / f"{name}.{suffix}"
        with whole_file(path) as partial:
            partial.write_text(_document(layout, paper.title, tables), encoding="utf-8")
        written.append(path)
    return written


def paper_table(paper: PaperTable, dataset: str, outcome: Outcome) -> Table:
    """One dataset's part: a line per row of the paper, and beneath what to know of it."""
    from sacmil.evaluation.layouts import Table

    header = [
        "",
        *(f"{title} {whose}" for title in METRICS.values() for whose in ("paper", "ours")),
    ]
    return Table(
        " ".join([outcome.about, *_notes(paper, dataset)]),
        tuple(header),
        tuple(tuple(_cells(paper, dataset, row, outcome)) for row in paper.figures),
        tuple(_records(paper, dataset, outcome)),
    )


def _cells(paper: PaperTable, dataset: str, row: str, outcome: Outcome) -> Iterator[Cell]:
    from sacmil.evaluation.layouts import Cell
    from sacmil.evaluation.tables import NOTHING, Style

    style = Style(percent=True, spread="std")
    ours = outcome.figures.get(row, {})
    yield Cell(row + paper.row_marks(row))
    for metric in METRICS:
        printed = paper.figures[row][dataset][metric]
        yield Cell(f"{printed.mean:.1f}{paper.marks(row, dataset, metric)}")
        yield Cell(style.figure(ours[metric]) if metric in ours else NOTHING)


def _notes(paper: PaperTable, dataset: str) -> list[str]:
    """What the marks in one dataset's part say."""
    used = "".join(
        paper.row_marks(row) + paper.marks(row, dataset, metric)
        for row in paper.figures
        for metric in METRICS
    )
    return [f"{mark} In the paper: {note}." for mark, note in paper.notes().items() if mark in used]


def _records(paper: PaperTable, dataset: str, outcome: Outcome) -> Iterator[dict[str, object]]:
    notes = paper.notes()
    for row, datasets in paper.figures.items():
        for metric, printed in datasets[dataset].items():
            marks = paper.row_marks(row) + paper.marks(row, dataset, metric)
            ours = outcome.figures.get(row, {}).get(metric)
            yield {
                "dataset": dataset,
                "row": row,
                "metric": metric,
                "paper_mean": printed.mean,
                "paper_std": printed.spread,
                "misprint": "; ".join(notes[mark] for mark in marks),
                **{f"ours_{key}": _percent(ours, key) for key in ("mean", "std", "low", "high")},
                "about": outcome.about,
            }


def _percent(figure: Figure | None, key: str) -> float | str:
    return "" if figure is None else 100 * float(getattr(figure, key))


# --- the four layouts ----------------------------------------------------------------------------


def _document(layout: str, title: str, tables: Mapping[str, Table]) -> str:
    from sacmil.evaluation.layouts import render

    if layout == "csv":
        joined = [record for table in tables.values() for record in table.records]
        return render(replace(next(iter(tables.values())), records=tuple(joined)), "csv")
    parts = [_part(layout, DATASETS[dataset], table) for dataset, table in tables.items()]
    whole = "\n".join([_TITLES[layout].format(title), *parts])
    return whole.translate(_IN_LATEX) if layout == "latex" else whole


_TITLES = {"text": "{}\n", "markdown": "# {}\n", "latex": "% {}"}


def _part(layout: str, heading: str, table: Table) -> str:
    from sacmil.evaluation.layouts import render
    from sacmil.evaluation.printable import printable

    if layout == "latex":
        return render(replace(table, caption=f"{heading}. {table.caption}"), layout)
    if layout == "markdown":
        return f"## {heading}\n\n{render(table, layout)}"
    wrapped = textwrap.fill(printable(table.caption), WIDTH)
    return f"{heading}\n\n{render(replace(table, caption=''), layout)}\n{wrapped}\n"


_IN_LATEX = str.maketrans(
    {"†": r"$\dagger$", "‡": r"$\ddagger$", "§": r"\S{}", "¶": r"\P{}", "λ": r"$\lambda$"}
)
"""What a plain LaTeX has no letters for."""
