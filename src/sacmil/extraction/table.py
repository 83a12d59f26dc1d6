"""extraction.csv: a row per slide, with its status and the reason for a failure."""

from __future__ import annotations

import csv
import io
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import IO

from sacmil.atomic import atomic_write, force_to_disk, report_final_path
from sacmil.csv_text import escape_cells, restore_cell
from sacmil.errors import FormatError, shorten_value

_FIX_HINT = "move it away, or choose another `out`"
_ADDED_COLUMNS = ("tissue",)
"""Columns that tables of earlier versions lack."""


@dataclass(frozen=True)
class ExtractionRow:
    """The result of one slide."""

    slide_id: str
    path: str
    status: str
    """done, or failed."""
    reason: str
    """Why it failed, in a sentence."""
    tiles: str
    mpp: str
    """Microns per level-0 pixel, or unknown."""
    reader: str
    cut: str
    """Resolution and size of tiles: the name of their folder."""
    encoder: str
    bag: str
    """Path of the bag, relative to the folder of this table."""
    seconds: str
    tissue: str = ""
    """How tissue was found: detect, all, or outline for one drawn by hand."""


RowKey = tuple[str, str, str]
"""Slide, cut and encoder: a table has one row per combination."""

_COLUMNS = [field.name for field in fields(ExtractionRow)]


class ExtractionTable:
    """The table of an output folder; rows of earlier runs stay until their slide is done again.

    Rows are appended, so that a row costs the same however many there are. ``finish`` removes
    replaced rows. An incomplete last line, left by a killed run, is dropped.

    Args:
        path: extraction.csv.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[RowKey, ExtractionRow] = {}
        self._keys: dict[str, set[RowKey]] = {}
        self._has_replaced = self._has_appended = False
        found, self._can_append = _read_rows(path)
        for row in found:
            self._add(row)

    def find(self, slide_id: str, cut: str, encoder: str) -> ExtractionRow | None:
        """Return the row of a slide for a cut and an encoder; None if there is none."""
        return self._rows.get((slide_id, cut, encoder))

    def write(self, row: ExtractionRow) -> None:
        """Add a row; it replaces an older row of the same key and earlier failures of the slide.

        A row that differs from the table only in its seconds is not written.
        """
        older = self._rows.get(_make_key(row))
        if older is not None and replace(row, seconds=older.seconds) == older:
            return
        if not self._can_append:
            self._rewrite()
        self._add(row)
        self._append(row)

    def finish(self) -> None:
        """Remove replaced rows, and force the table to disk."""
        if self._has_replaced:
            self._rewrite()
        elif self._has_appended:
            force_to_disk(self._path)

    def _append(self, row: ExtractionRow) -> None:
        self._can_append = False  # stays so after an error: a new line must not continue a torn one
        with report_final_path(self._path), _open_text(self._path, "a") as file:
            _write_row(file, row)
        self._can_append = self._has_appended = True

    def _add(self, row: ExtractionRow) -> None:
        keys = self._keys.setdefault(row.slide_id, set())
        for key in [key for key in keys if _replaces(row, self._rows[key])]:
            del self._rows[key]
            keys.discard(key)
            self._has_replaced = True
        self._rows[_make_key(row)] = row
        keys.add(_make_key(row))

    def _rewrite(self) -> None:
        with atomic_write(self._path) as partial, _open_text(partial, "w") as file:
            csv.writer(file, lineterminator="\n").writerow(_COLUMNS)
            for row in self._rows.values():
                _write_row(file, row)
        self._can_append, self._has_replaced = True, False


def _make_key(row: ExtractionRow) -> RowKey:
    return row.slide_id, row.cut, row.encoder


def _write_row(file: IO[str], row: ExtractionRow) -> None:
    csv.writer(file, lineterminator="\n").writerow(escape_cells(astuple(row)))


def _open_text(path: Path, mode: str) -> IO[str]:
    return path.open(mode, newline="", encoding="utf-8")


def _replaces(row: ExtractionRow, older: ExtractionRow) -> bool:
    is_same = _make_key(row) == _make_key(older)
    is_earlier_failure = older.status == "failed" and older.encoder in ("", row.encoder)
    return is_same or is_earlier_failure


def _read_rows(path: Path) -> tuple[list[ExtractionRow], bool]:
    """Return the rows, and whether more can be appended to the file."""
    if not path.exists():
        return [], False
    text = path.read_bytes().decode("utf-8", errors="replace")
    try:
        found, *lines = csv.reader(io.StringIO(text, newline="")) if text else [[]]
    except csv.Error as error:
        raise FormatError(f"{path}: cannot be read as a table ({error}); {_FIX_HINT}") from error
    if found not in (_COLUMNS, [name for name in _COLUMNS if name not in _ADDED_COLUMNS]):
        raise FormatError(
            f"{path}: has columns {shorten_value(found)}; expected {', '.join(_COLUMNS)}: "
            f"{_FIX_HINT}"
        )
    is_torn = bool(lines) and (not text.endswith("\n") or len(lines[-1]) != len(found))
    rows = [_parse_row(found, line) for line in (lines[:-1] if is_torn else lines) if line]
    return rows, not is_torn and found == _COLUMNS and text.endswith("\n")


def _parse_row(names: list[str], line: list[str]) -> ExtractionRow:
    cells = dict(zip(names, map(restore_cell, line), strict=False))
    return ExtractionRow(**dict.fromkeys(_COLUMNS, "") | cells)
