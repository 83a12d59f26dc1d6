"""Read a table file as text: CSV with any common separator, or Excel; ids keep leading zeros."""

from __future__ import annotations

import csv
import io
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacmil.csv_text import restore_cell
from sacmil.errors import CohortError, UnknownColumnError, require_extra, suggest_names

_SEPARATORS = (",", ";", "\t")
_EXCEL_SUFFIXES = (".xlsx", ".xlsm")
_BLANKS = frozenset({"", "nan", "NaN", "NA", "N/A", "#N/A"})
"""Missing values of pandas, R and Excel."""
_MAX_COLUMNS_SHOWN = 20
"""Columns that a message lists."""
_MAX_ROWS = 2**20
"""Rows of an Excel sheet; Excel's own limit."""
_MAX_CELLS = 20_000_000
"""Cells up to the last formatted one of each row; reading takes a second per ten million."""
_MAX_BYTES = 2**29
"""Unpacked size of an Excel file; about that of a table of a million rows and ten columns."""


@dataclass(frozen=True)
class Sheet:
    """A header and rows of text, each as wide as the header; blank cells are empty text."""

    path: Path
    columns: tuple[str, ...]
    rows: Mapping[int, tuple[str, ...]]
    """The cells of each row, by its line in the file."""

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
            near = suggest_names(name, filter(None, self.columns))
            problem = f"there is no column {name!r} for the {role}; {near}"
            raise UnknownColumnError(self.path, [problem])
        return found

    def get_column(self, name: str) -> list[str]:
        """Return the cells of a column, top to bottom."""
        if self.columns.count(name) > 1:
            raise CohortError(self.path, [f"two columns are called {name!r}; rename one"])
        number = self.columns.index(name)
        return [row[number] for row in self.rows.values()]

    def list_columns(self) -> str:
        """Return the names of the columns, for messages."""
        return list_first(list(filter(None, self.columns)), _MAX_COLUMNS_SHOWN) or "none"


def list_first(names: Sequence[str], count: int = 3) -> str:
    """Return the first names and the number of the others, for messages.

    >>> list_first(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    left = len(names) - count
    return ", ".join(names[:count]) + (f" and {left} more" if left > 0 else "")


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
    if not path.exists():
        raise CohortError(path, ["there is no such file; check the path"])
    found = _read_excel(path, sheet) if excel else _read_csv(path)
    rows = {number: cells for number, texts in found if any(cells := _clean_cells(texts))}
    if not rows:
        raise CohortError(path, ["is empty; expected a header and a row per slide"])
    columns = rows.pop(next(iter(rows)))
    width = len(columns)
    wide = [number for number, cells in rows.items() if any(cells[width:])]
    if wide and not excel:  # notes beside an Excel table belong to no column
        lines = ", ".join(map(str, wide[:5]))
        problem = f"line {lines}: more cells than the header's {width}; put quotes around commas"
        raise CohortError(path, [problem])
    padding = ("",) * width
    return Sheet(path, columns, {line: (row + padding)[:width] for line, row in rows.items()})


def _clean_cells(cells: Iterable[str]) -> tuple[str, ...]:
    stripped = map(str.strip, cells)
    return tuple(["" if cell in _BLANKS else restore_cell(cell) for cell in stripped])


# --- CSV ------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> list[tuple[int, list[str]]]:
    """Return the number of the last line and the cells of each row."""
    text = _read_text(path)
    rows: list[tuple[int, list[str]]] = []
    try:
        # Not splitlines: it also breaks at characters that a cell may contain, such as U+2028.
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=_find_separator(text))
        rows.extend((reader.line_num, cells) for cells in reader)
    except csv.Error as error:
        where = f"after line {rows[-1][0] if rows else 1}: cannot be read as CSV ({error})"
        problem = f"{where}; expected cells of a few words, check the quotes"
        raise CohortError(path, [problem]) from error
    return rows


def _read_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        is_wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")  # Excel's "Unicode text"
        text = raw.decode("utf-16" if is_wide else "utf-8-sig")
    except OSError as error:
        raise CohortError(path, [f"cannot be read ({error.strerror})"]) from error
    except UnicodeDecodeError as error:
        reason = f"{error.reason} at byte {error.start}"
        raise CohortError(path, [f"is not UTF-8 text ({reason}); save it as CSV UTF-8"]) from error
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        problem = f"line {line}: found a NUL character; expected text, save it as CSV UTF-8"
        raise CohortError(path, [problem])
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


# --- Excel ----------------------------------------------------------------------------------------


def _read_excel(path: Path, sheet: str | None) -> list[tuple[int, list[str]]]:
    """Return number and cells of each row that has a value, each row up to its last value."""
    with require_extra("excel", f"reading {path.name}"):
        import openpyxl

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unsupported styles and validations
            _check_unpacked_size(path)
            with closing(openpyxl.load_workbook(path, read_only=True, data_only=True)) as book:
                return list(_read_excel_rows(path, _select_worksheet(path, book, sheet)))
    except CohortError:
        raise
    # openpyxl can raise almost any error for a damaged file, as late as in its last row.
    except Exception as error:
        problem = f"cannot be read as Excel ({error}); save it again, or as CSV UTF-8"
        raise CohortError(path, [problem]) from error


def _check_unpacked_size(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > _MAX_BYTES:
        found = f"unpacks to {size / 2**20:,.0f} MB; expected at most {_MAX_BYTES / 2**20:,.0f}"
        fix = "save only the sheet of the table, or save as CSV UTF-8"
        raise CohortError(path, [f"{found}, {fix}"])


def _select_worksheet(path: Path, book: Any, sheet: str | None) -> Any:
    pages = {page.title: page for page in book.worksheets}
    if sheet is not None and sheet not in pages:
        raise CohortError(path, [f"there is no sheet {sheet!r}; {suggest_names(sheet, pages)}"])
    if not pages:
        raise CohortError(path, ["has no sheet of cells; expected a table"])
    return book.worksheets[0] if sheet is None else pages[sheet]


def _read_excel_rows(path: Path, page: Any) -> Iterator[tuple[int, list[str]]]:
    page.reset_dimensions()  # declared dimensions make every row as wide as the widest
    count = 0
    for number, row in enumerate(page.iter_rows(), start=1):
        count += len(row)
        if number > _MAX_ROWS or count > _MAX_CELLS:
            found = f"row {number:,}: the sheet has more than {count:,} cells"
            fix = "delete the formatted rows and columns beyond the table or save as CSV"
            raise CohortError(path, [f"{found}; expected a row per slide, {fix}"])
        texts = [_to_text(cell) for cell in row]
        while texts and not texts[-1]:
            texts.pop()
        yield number, texts


def _to_text(cell: Any) -> str:
    """Return a cell as Excel shows it: 7 formatted as 007 is 007, whole numbers have no point."""
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    zeros = isinstance(value, int) and re.fullmatch(r"0+", str(cell.number_format))
    return str(value).zfill(len(cell.number_format)) if zeros else str(value)
