"""Read the rows of an Excel sheet as text; formatted cells without a value are ignored."""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sacmil.errors import CohortError, MissingExtraError, suggest_names

_MAX_ROWS = 2**20
"""Excel's own limit."""
_MAX_CELLS = 20_000_000
"""Cells up to the last formatted one of each row; reading takes a second per ten million."""
_MAX_BYTES = 2**29
"""Unpacked size; about that of a table of a million rows and ten columns."""


def read_excel(path: Path, sheet: str | None) -> list[tuple[int, list[str]]]:
    """Return number and cells of each row that has a value, each row up to its last value.

    Args:
        path: .xlsx or .xlsm.
        sheet: its name; the first if not given.
    """
    try:
        import openpyxl
    except ModuleNotFoundError as error:
        raise MissingExtraError("excel", f"reading {path.name}") from error

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unsupported styles and validations
            _check_size(path)
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
            try:
                return list(_read_rows(path, _select_worksheet(path, book, sheet)))
            finally:
                book.close()
    except FileNotFoundError:
        raise CohortError(path, ["there is no such file; check the path"]) from None
    except CohortError:
        raise
    # openpyxl can raise almost any error for a damaged file, as late as in its last row.
    except Exception as error:
        raise CohortError(
            path, [f"cannot be read as Excel ({error}); save it again, or as CSV UTF-8"]
        ) from error


def _check_size(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > _MAX_BYTES:
        raise CohortError(
            path,
            [
                f"unpacks to {size / 2**20:,.0f} MB; expected at most {_MAX_BYTES / 2**20:,.0f}, "
                "save only the sheet of the table, or save as CSV UTF-8"
            ],
        )


def _read_rows(path: Path, page: Any) -> Iterator[tuple[int, list[str]]]:
    page.reset_dimensions()  # declared dimensions make every row as wide as the widest
    cells = 0
    for number, row in enumerate(page.iter_rows(), start=1):
        cells += len(row)
        if number > _MAX_ROWS or cells > _MAX_CELLS:
            raise CohortError(
                path,
                [
                    f"row {number:,}: the sheet has more than {cells:,} cells; expected a row per "
                    "slide, delete the formatted rows and columns beyond the table or save as CSV"
                ],
            )
        values = [(column, cell) for column, cell in enumerate(row) if cell.value is not None]
        if values:
            texts = [""] * (values[-1][0] + 1)
            for column, cell in values:
                texts[column] = _to_text(cell)
            yield number, texts


def _select_worksheet(path: Path, book: Any, sheet: str | None) -> Any:
    names = [page.title for page in book.worksheets]
    if sheet is not None and sheet not in names:
        raise CohortError(path, [f"there is no sheet {sheet!r}; {suggest_names(sheet, names)}"])
    if not names:
        raise CohortError(path, ["has no sheet of cells; expected a table"])
    return book.worksheets[0] if sheet is None else book[sheet]


def _to_text(cell: Any) -> str:
    """Return a cell as Excel shows it: 7 formatted as 007 is 007, whole numbers have no point."""
    value = cell.value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    zeros = isinstance(value, int) and re.fullmatch(r"0+", str(cell.number_format))
    return str(value).zfill(len(cell.number_format)) if zeros else str(value)
