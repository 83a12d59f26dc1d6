"""Read a table file as text: CSV with any common separator, or Excel; ids keep leading zeros."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sacmil.cohorts.excel import read_excel
from sacmil.csv_text import restore_cell
from sacmil.errors import CohortError, suggest_names

_SEPARATORS = (",", ";", "\t")
_EXCEL_SUFFIXES = (".xlsx", ".xlsm")
_BLANKS = frozenset({"", "nan", "NaN", "NA", "N/A", "#N/A"})
"""Missing values of pandas, R and Excel."""
_CLEANING_PATTERN = re.compile(r"[^\S\r\n]|'|[nN]a?[aA]|N/A")
"""Blanks, apostrophes and missing values; most tables of plain ids have none."""


@dataclass(frozen=True)
class Sheet:
    """A header and rows of text, each as wide as the header; blank cells are empty text."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    line_numbers: tuple[int, ...]
    """Line of each row in the file, for messages."""

    def find_column(self, *names: str) -> str | None:
        """Return the first of these names that is a column, ignoring case, as in the file."""
        spelled = {column.lower(): column for column in reversed(self.columns)}
        exact = (name for name in names if name in self.columns)
        loose = (spelled[name.lower()] for name in names if name.lower() in spelled)
        return next(exact, None) or next(loose, None)

    def require_column(self, name: str, role: str) -> str:
        """Return a column that the caller named, or raise an error that lists the columns."""
        found = self.find_column(name)
        if found is None:
            near = suggest_names(name, [column for column in self.columns if column])
            raise CohortError(self.path, [f"there is no column {name!r} for the {role}; {near}"])
        return found

    def get_column(self, name: str) -> list[str]:
        """Return the cells of a column, top to bottom."""
        if self.columns.count(name) > 1:
            raise CohortError(self.path, [f"two columns are called {name!r}; rename one"])
        number = self.columns.index(name)
        return [row[number] for row in self.rows]


def read_sheet(path: str | Path, *, sheet: str | None = None) -> Sheet:
    """Read a table file; its type follows from its name and its first line.

    Args:
        path: .csv, .tsv, .txt with comma, semicolon or tab, or .xlsx.
        sheet: name of the sheet in an Excel file; the first if not given.
    """
    path = Path(path)
    if path.suffix.lower() == ".xls":
        raise CohortError(path, ["is an old Excel file; save it as .xlsx or CSV"])
    excel = path.suffix.lower() in _EXCEL_SUFFIXES
    if sheet is not None and not excel:
        raise CohortError(path, [f"has no sheets ({sheet!r} was given); leave out the sheet"])
    numbered = _clean_rows(read_excel(path, sheet)) if excel else _read_csv_rows(path)
    lines = [(number, cells) for number, cells in numbered if any(cells)]
    if excel and lines:  # notes beside the table belong to no column
        lines = [(number, cells[: len(lines[0][1])]) for number, cells in lines]
    return _make_sheet(path, lines)


def _make_sheet(path: Path, lines: list[tuple[int, list[str]]]) -> Sheet:
    if not lines:
        raise CohortError(path, ["is empty; expected a header and a row per slide"])
    (_, columns), *rows = lines
    width = len(columns)
    wide = [number for number, cells in rows if len(cells) > width and any(cells[width:])]
    if wide:
        found = ", ".join(map(str, wide[:5]))
        raise CohortError(
            path, [f"line {found}: more cells than the header's {width}; put quotes around commas"]
        )
    padded = tuple([_pad_row(cells, width) for _, cells in rows])
    return Sheet(path, tuple(columns), padded, tuple([number for number, _ in rows]))


def _pad_row(cells: list[str], width: int) -> tuple[str, ...]:
    return tuple(cells if len(cells) == width else (cells + [""] * width)[:width])


def _clean_rows(rows: Iterable[tuple[int, Iterable[str]]]) -> Iterator[tuple[int, list[str]]]:
    return ((number, _clean_cells(cells)) for number, cells in rows)


def _clean_cells(cells: Iterable[str]) -> list[str]:
    stripped = [cell.strip() for cell in cells]
    if _BLANKS.isdisjoint(stripped) and "'" not in "".join(stripped):  # fast path of most rows
        return stripped
    restored = (restore_cell(cell) for cell in stripped)
    return ["" if cell in _BLANKS else cell for cell in restored]


def _read_csv_rows(path: Path) -> Iterable[tuple[int, list[str]]]:
    text = _read_text(path)
    rows: list[tuple[int, list[str]]] = []
    try:
        # Not splitlines: it also breaks at characters that a cell may contain, such as U+2028.
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=_find_separator(text))
        if '"' in text:
            rows.extend((reader.line_num, cells) for cells in reader)
        else:  # each row is a line, and counting them is faster
            rows.extend(enumerate(reader, 1))
    except csv.Error as error:
        line = rows[-1][0] if rows else 1
        raise CohortError(
            path,
            [
                f"after line {line}: cannot be read as CSV ({error}); expected cells of a few "
                "words, check the quotes"
            ],
        ) from error
    return _clean_rows(rows) if _CLEANING_PATTERN.search(text) else rows


def _read_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise CohortError(path, ["there is no such file; check the path"]) from None
    except OSError as error:
        raise CohortError(path, [f"cannot be read ({error.strerror})"]) from error
    wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")  # Excel's "Unicode text"
    try:
        text = raw.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise CohortError(
            path,
            [f"is not UTF-8 text ({error.reason} at byte {error.start}); save it as CSV UTF-8"],
        ) from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise CohortError(
            path, [f"line {line}: found a NUL character; expected text, save it as CSV UTF-8"]
        )
    return text


def _find_separator(text: str) -> str:
    """Return the separator that splits the header into the most cells."""
    header = next((line for line in text.splitlines() if line.strip()), "")
    return max(_SEPARATORS, key=lambda separator: _count_cells(header, separator))


def _count_cells(line: str, separator: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=separator), []))
    except csv.Error:  # a cell above csv's length limit: this is not the separator
        return 0
