"""Tables as text, Markdown, LaTeX or CSV.

Printed cells are rounded; the records, which CSV uses, are not.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from unicodedata import east_asian_width

from sacmil.csv_text import escape_cells
from sacmil.evaluation.printable import make_printable


class Cell(NamedTuple):
    """One formatted cell of a table."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class ResultTable:
    """Cells under a header, and their unrounded values."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    records: tuple[Mapping[str, object], ...]


def render_table(table: ResultTable, layout: str = "text") -> str:
    """Return the table in one of FORMATS, with a final newline."""
    return FORMATS[layout](table)


def _render_text(table: ResultTable) -> str:
    lines = [table.header, *([cell.text for cell in row] for row in table.rows)]
    cleaned = [[make_printable(text) for text in line] for line in lines]
    widths = [max(map(_display_width, column)) for column in zip(*cleaned, strict=True)]
    shown = [
        "  ".join(
            text + " " * (w - _display_width(text)) for text, w in zip(line, widths, strict=True)
        )
        for line in cleaned
    ]
    shown.insert(1, "  ".join("-" * width for width in widths))
    return _join_lines(
        [*(line.rstrip() for line in shown), *_make_footer(make_printable(table.caption))]
    )


def _display_width(text: str) -> int:
    """Return the columns of a terminal it takes: Chinese, Japanese and Korean letters take two."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _render_markdown(table: ResultTable) -> str:
    def line(texts: Iterable[str]) -> str:
        return f"| {' | '.join(texts)} |"

    rows = [
        line(f"**{_escape_markdown(c.text)}**" if c.best else _escape_markdown(c.text) for c in row)
        for row in table.rows
    ]
    head = [line(map(_escape_markdown, table.header)), line("---" for _ in table.header)]
    return _join_lines([*head, *rows, *_make_footer(_escape_markdown(table.caption))])


def _render_latex(table: ResultTable) -> str:
    def line(texts: Iterable[str]) -> str:
        return f"    {' & '.join(texts)} \\\\"

    rows = [
        line(
            rf"\textbf{{{_escape_latex(c.text)}}}" if c.best else _escape_latex(c.text) for c in row
        )
        for row in table.rows
    ]
    return _join_lines(
        [
            r"\begin{table}",
            r"  \centering",
            *([rf"  \caption{{{_escape_latex(table.caption)}}}"] if table.caption else []),
            rf"  \begin{{tabular}}{{{'l' * len(table.header)}}}",
            r"    \toprule",
            line(map(_escape_latex, table.header)),
            r"    \midrule",
            *rows,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


def _render_csv(table: ResultTable) -> str:
    stream = io.StringIO()
    if table.records:
        writer = csv.writer(stream, lineterminator="\n")
        columns = list(table.records[0])
        writer.writerow(escape_cells(columns))
        writer.writerows(escape_cells(map(record.get, columns)) for record in table.records)
    return stream.getvalue()


FORMATS: Mapping[str, Callable[[ResultTable], str]] = {
    "text": _render_text,
    "markdown": _render_markdown,
    "latex": _render_latex,
    "csv": _render_csv,
}


def _join_lines(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def _make_footer(caption: str) -> list[str]:
    return ["", caption] if caption else []


_MARKDOWN_SPECIAL = re.compile(r"([\\`*|<>&~]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_]))")
"""Characters that are markup in Markdown or HTML; _ within a word, as in sac_mil, is not."""


def _escape_markdown(text: str) -> str:
    return _MARKDOWN_SPECIAL.sub(r"\\\1", make_printable(text))


_LATEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{character: rf"\{character}" for character in "&%$#_{}"},
}


def _escape_latex(text: str) -> str:
    # a bracket right after \\ would be read as its option
    escaped = "".join(
        _LATEX_ESCAPES.get(character, character) for character in make_printable(text)
    )
    return f"{{}}{escaped}" if escaped.startswith("[") else escaped
