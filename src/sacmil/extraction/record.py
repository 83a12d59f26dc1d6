"""extraction.csv: a row per slide, done or why not; always whole on disk."""

from __future__ import annotations

import csv
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from sacmil.atomic import whole_file
from sacmil.csv_text import escape_cells, restore_cell
from sacmil.errors import FormatError, shorten

_MOVE_AWAY = "move it away, or choose another --out"
_ADDED = ("tissue",)
"""Columns that tables of earlier versions do not have."""


@dataclass(frozen=True)
class Row:
    """What became of one slide."""

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
    """How tiles were cut: the name of the folder they are in."""
    encoder: str
    bag: str
    """The file made, relative to the folder of this table."""
    seconds: str
    tissue: str = ""
    """How tissue was found: detect, all, or outline for one made by hand."""


class Record:
    """The table of an output folder; rows of earlier runs stay until their slide is done again.

    Args:
        path: extraction.csv.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = [*_read(path)]

    def write(self, row: Row) -> None:
        """Add a row, in the place of an older one of the same and of failures on the way to it."""
        self._rows = [*(older for older in self._rows if not _replaces(row, older)), row]
        names = [field.name for field in fields(Row)]
        with (
            whole_file(self._path) as partial,
            partial.open("w", newline="", encoding="utf-8") as file,
        ):
            table = csv.writer(file, lineterminator="\n")
            table.writerow(names)
            table.writerows(escape_cells(astuple(row)) for row in self._rows)


def _replaces(row: Row, older: Row) -> bool:
    if row.slide_id != older.slide_id:
        return False
    same = (row.cut, row.encoder) == (older.cut, older.encoder)
    on_the_way = older.status == "failed" and older.encoder in ("", row.encoder)
    return same or on_the_way


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            return _parse(path, csv.DictReader(file))
    except csv.Error as error:
        raise FormatError(f"{path}: cannot be read as a table ({error}); {_MOVE_AWAY}") from error


def _parse(path: Path, table: csv.DictReader[str]) -> list[Row]:
    names = [field.name for field in fields(Row)]
    found = list(table.fieldnames or [])
    if found not in (names, [name for name in names if name not in _ADDED]):
        raise FormatError(
            f"{path}: has columns {shorten(found)}; expected {', '.join(names)}: {_MOVE_AWAY}"
        )
    return [Row(**{name: restore_cell(row.get(name) or "") for name in names}) for row in table]
