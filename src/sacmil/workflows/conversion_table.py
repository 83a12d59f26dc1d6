"""convert.csv: a row per bag, with its status and its source.

A row "started" means that the run ended before the status was written.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sacmil.atomic import atomic_write, report_final_path
from sacmil.csv_text import escape_cells, restore_cell

if TYPE_CHECKING:
    import pandas

CONVERT_CSV = "convert.csv"


@dataclass(frozen=True, kw_only=True)
class ConversionRow:
    """A row of convert.csv."""

    file: str
    slide_id: str
    status: str
    """converted, failed or started; present (written as converted) if there is nothing to do."""
    reason: str = ""
    """Why it failed, or warnings."""
    instances: str = ""
    layout: str = ""
    size: str
    """Bytes of the source; with the next two, shows whether it has changed since."""
    modified_ns: str
    settings: str


@dataclass(frozen=True)
class ConversionSummary:
    """The bags of one conversion."""

    out: Path
    """The folder of the native bags."""
    rows: Sequence[ConversionRow]
    """One per file, as in convert.csv; what was up to date is ``present``."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of files by status: converted, present and failed."""
        found = Counter(row.status for row in self.rows)
        return {status: found[status] for status in ("converted", "present", "failed")}

    @property
    def failures(self) -> dict[str, str]:
        """Reason of each failure, by slide."""
        return {row.slide_id: row.reason for row in self.rows if row.status == "failed"}

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row per file; ConversionRow describes the columns."""
        import pandas

        frame = pandas.DataFrame([asdict(row) for row in self.rows])
        return (
            frame.assign(instances=pandas.to_numeric(frame["instances"], errors="coerce"))
            if len(frame)
            else frame
        )


def read_table(path: Path) -> dict[str, ConversionRow]:
    """Return the last row of each file; ignore a line that a crash cut short."""
    names = {field.name for field in fields(ConversionRow)}
    if not path.is_file():
        return {}
    with _open_csv(path, "r") as file:
        try:
            lines = [line for line in csv.DictReader(file) if set(line) == names]
        except csv.Error:  # not our table any more
            return {}
    rows = (_parse_row(line) for line in lines if None not in line.values())
    return {row.file: row for row in rows}


def _parse_row(line: Mapping[str, str]) -> ConversionRow:
    return ConversionRow(**{name: restore_cell(text) for name, text in line.items()})


def _open_csv(path: Path, mode: str) -> IO[str]:
    # file names need not be UTF-8
    return path.open(mode, newline="", encoding="utf-8", errors="surrogateescape")


def write_table(path: Path, rows: Mapping[str, ConversionRow]) -> None:
    """Write the rows atomically; a row "present" is written as converted."""
    with atomic_write(path) as partial, _open_csv(partial, "w") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(ConversionRow)])
        writer.writerows(escape_cells(astuple(_to_final_status(row))) for row in rows.values())


def _to_final_status(row: ConversionRow) -> ConversionRow:
    """Return the row as an uninterrupted run would have written it."""
    return replace(row, status="converted") if row.status == "present" else row


def append_row(path: Path, row: ConversionRow) -> None:
    """Append a row, and force it to disk."""
    with report_final_path(path), _open_csv(path, "a") as file:
        csv.writer(file).writerow(escape_cells(astuple(row)))
        file.flush()
        os.fsync(file.fileno())
