"""Tables as text, Markdown, LaTeX or CSV, and the format of their numbers.

Printed cells are rounded; the records, which CSV uses, are not.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol
from unicodedata import east_asian_width

from sacmil.csv_text import escape_cells
from sacmil.evaluation.summary import MetricEstimate
from sacmil.tasks import format_significant

Spread = Literal["both", "std", "interval", "none"]
UNDEFINED = "–"
"""Text of an undefined value."""
_MARKDOWN_SPECIAL = re.compile(r"([\\`*|<>&~]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_]))")
"""Characters that are markup in Markdown or HTML; _ within a word, as in sac_mil, is not."""
_LATEX_ESCAPES = str.maketrans(
    {
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
)


# --- numbers and names ---------------------------------------------------------------------------


class MayBeShare(Protocol):
    """An estimate, or a difference of two."""

    @property
    def is_share(self) -> bool:
        """Whether it can be printed in percent."""


@dataclass(frozen=True, kw_only=True)
class TableStyle:
    """Number format of tables."""

    percent: bool = False
    """Percentages with one decimal, as in the paper, instead of fractions with three."""
    significant: bool = False
    """Four significant digits, for numbers of any size."""
    decimals: int | None = None
    """Of numbers printed together; overrides ``significant``."""
    spread: Spread = "both"
    """Printed with a mean: standard deviation over folds, interval, both or none."""

    @property
    def shows_std(self) -> bool:
        """Whether standard deviations are printed."""
        return self.spread in ("both", "std")

    @property
    def shows_intervals(self) -> bool:
        """Whether intervals are printed."""
        return self.spread in ("both", "interval")

    def suited_to(self, one: MayBeShare) -> TableStyle:
        """Return the style for a metric: other digits if it has the unit of the targets."""
        return self if one.is_share else replace(self, percent=False, significant=True)

    def aligned_to(self, *values: float) -> TableStyle:
        """Return the style for numbers printed together, with the decimals of the largest."""
        largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        if not self.significant or "e" in (text := format_significant(largest)):
            return self
        return replace(self, decimals=len(text.partition(".")[2]))

    def format_number(self, value: float, sign: str = "") -> str:
        """Return a rounded number, never minus zero."""
        if not math.isfinite(value):
            return UNDEFINED
        if self.decimals is not None:
            return f"{round(value, self.decimals) + 0.0:{sign}.{self.decimals}f}"
        if self.significant:
            return format_significant(value + 0.0, sign)
        shown = round(100 * value, 1) if self.percent else round(value, 3)
        return f"{shown + 0.0:{sign}.{1 if self.percent else 3}f}"

    def format_interval(self, low: float, high: float, sign: str = "") -> str:
        """Return both ends in brackets after a space, or "" if one is undefined."""
        if not math.isfinite(low + high):
            return ""
        return f" [{self.format_number(low, sign)}, {self.format_number(high, sign)}]"

    def format_estimate(self, estimate: MetricEstimate) -> str:
        """Return a mean with its standard deviation and interval, as chosen and if defined."""
        style = self.suited_to(estimate).aligned_to(estimate.mean, estimate.std)
        text = style.format_number(estimate.mean)
        if text == UNDEFINED:
            return text
        if self.shows_std and math.isfinite(estimate.std):
            text += f" ± {style.format_number(estimate.std)}"
        if self.shows_intervals:
            text += style.format_interval(estimate.low, estimate.high)
        return text


DEFAULT_STYLE = TableStyle()


def format_p_value(p: float | None) -> str:
    """Format a p value with three decimals, or as <0.001."""
    if p is None or not math.isfinite(p):
        return UNDEFINED
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def make_printable(text: str) -> str:
    """Return text on one line without control characters, safe for terminals, tables and pages.

    >>> make_printable("a\\x1b[31mb")
    'a�[31mb'
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "�" for character in text)


# --- tables --------------------------------------------------------------------------------------


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
    header, *rows = _format_lines(table, make_printable)
    widths = [max(map(_display_width, column)) for column in zip(header, *rows, strict=True)]
    shown = [
        "  ".join(
            text + " " * (w - _display_width(text)) for text, w in zip(line, widths, strict=True)
        ).rstrip()
        for line in (header, ["-" * width for width in widths], *rows)
    ]
    return _join_lines(shown, make_printable(table.caption))


def _display_width(text: str) -> int:
    """Return the columns of a terminal it takes: Chinese, Japanese and Korean letters take two."""
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _render_markdown(table: ResultTable) -> str:
    header, *rows = _format_lines(table, _escape_markdown, "**{}**")
    lines = [f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows)]
    return _join_lines(lines, _escape_markdown(table.caption))


def _escape_markdown(text: str) -> str:
    return _MARKDOWN_SPECIAL.sub(r"\\\1", make_printable(text))


def _render_latex(table: ResultTable) -> str:
    lines = _format_lines(table, _escape_latex, r"\textbf{{{}}}")
    header, *rows = [f"    {' & '.join(line)} \\\\" for line in lines]
    document = [
        r"\begin{table}",
        r"  \centering",
        *([rf"  \caption{{{_escape_latex(table.caption)}}}"] if table.caption else []),
        rf"  \begin{{tabular}}{{{'l' * len(table.header)}}}",
        r"    \toprule",
        header,
        r"    \midrule",
        *rows,
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return _join_lines(document)


def _escape_latex(text: str) -> str:
    escaped = make_printable(text).translate(_LATEX_ESCAPES)
    # a bracket right after \\ would be read as its option
    return f"{{}}{escaped}" if escaped.startswith("[") else escaped


def _render_csv(table: ResultTable) -> str:
    stream = io.StringIO()
    if table.records:
        writer = csv.writer(stream, lineterminator="\n")
        columns = list(table.records[0])
        writer.writerow(escape_cells(columns))
        writer.writerows(escape_cells(map(record.get, columns)) for record in table.records)
    return stream.getvalue()


def _format_lines(
    table: ResultTable, escape: Callable[[str], str], bold: str = "{}"
) -> list[list[str]]:
    """Return the escaped texts of the header and each row; the best values are bold."""
    rows = [
        [bold.format(escape(c.text)) if c.best else escape(c.text) for c in row]
        for row in table.rows
    ]
    return [list(map(escape, table.header)), *rows]


def _join_lines(lines: Iterable[str], caption: str = "") -> str:
    """Join lines, with the caption after an empty line if there is one."""
    return "\n".join([*lines, *(["", caption] if caption else [])]) + "\n"


FORMATS: Mapping[str, Callable[[ResultTable], str]] = {
    "text": _render_text,
    "markdown": _render_markdown,
    "latex": _render_latex,
    "csv": _render_csv,
}
