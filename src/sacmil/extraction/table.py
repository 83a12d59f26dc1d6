"""What became of each slide: rows of extraction.csv, a summary, and the slides to skip next time.

A slide is finished if its settings and files have not changed since: the slide, its outline and all
outputs. Files are compared by size and time, so a rerun costs a few calls of ``stat`` per slide.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sacmil._version import __version__
from sacmil.atomic import atomic_write, force_to_disk, report_final_path
from sacmil.csv_text import escape_cells, restore_cell
from sacmil.errors import FormatError, shorten_value
from sacmil.extraction.slide_request import FileStamp, SlideRequest, read_stamp
from sacmil.slides.resolution import SlideResolutions

if TYPE_CHECKING:
    import pandas

_FIX_HINT = "move it away, or choose another `out`"
_ADDED_COLUMNS = ("tissue",)
"""Columns that tables of earlier versions lack."""
_FINISHED_FILE = ".extraction.json"
_STABLE_NAMES = {
    "ExtractionSettings": "Settings",
    "FileStamp": "Stamp",
    "EncoderInfo": "EncoderFacts",
    "can_resize": "resizes",
    "min_chroma_threshold": "faintest",
    "max_chroma_threshold": "boldest",
}
"""Names in digests that differ from those in the code; never change or remove one."""


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

    @property
    def key(self) -> tuple[str, str, str]:
        """Slide, cut and encoder: a table has one row per combination."""
        return self.slide_id, self.cut, self.encoder

    def replaces(self, older: ExtractionRow) -> bool:
        """Whether an older row of the slide is out of date: the same key, or a failure before."""
        is_earlier_failure = older.status == "failed" and older.encoder in ("", self.encoder)
        return self.key == older.key or is_earlier_failure


_COLUMNS = [field.name for field in fields(ExtractionRow)]


@dataclass(frozen=True)
class ExtractionSummary:
    """The slides of one extraction."""

    out: Path
    """The output folder."""
    rows: Sequence[ExtractionRow]
    """One per slide, as in extraction.csv."""

    @property
    def done(self) -> list[str]:
        """Names of the slides that are done, now or by an earlier run."""
        return [row.slide_id for row in self.rows if row.status != "failed"]

    @property
    def bags(self) -> dict[str, Path]:
        """File of each bag, by slide."""
        return {row.slide_id: self.out / row.bag for row in self.rows if row.bag}

    @property
    def failures(self) -> dict[str, str]:
        """Reason of each failure, by slide."""
        return {row.slide_id: row.reason for row in self.rows if row.status == "failed"}

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row per slide; ExtractionRow describes the columns."""
        import pandas

        frame = pandas.DataFrame([asdict(row) for row in self.rows])
        if not len(frame):
            return frame
        # "unknown" and empty cells become NaN
        names = ("tiles", "mpp", "seconds")
        return frame.assign(**{n: pandas.to_numeric(frame[n], errors="coerce") for n in names})


class ExtractionTable:
    """The table of an output folder; rows of earlier runs stay until their slide is done again.

    Rows are appended, so that a row costs the same however many there are. ``finish`` removes
    replaced rows. An incomplete last line, left by a killed run, is dropped.

    Args:
        path: extraction.csv.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[tuple[str, str, str], ExtractionRow] = {}
        self._keys: dict[str, set[tuple[str, str, str]]] = {}
        self._has_replaced = self._has_appended = False
        found, self._can_append = _read_rows(path)
        for row in found:
            self._add(row)

    def find(self, key: tuple[str, str, str]) -> ExtractionRow | None:
        """Return the row of a slide for a cut and an encoder; None if there is none."""
        return self._rows.get(key)

    def write(self, row: ExtractionRow) -> None:
        """Add a row; it replaces an older row of the same key and earlier failures of the slide.

        A row that differs from the table only in its seconds is not written.
        """
        older = self._rows.get(row.key)
        if older is not None and replace(row, seconds=older.seconds) == older:
            return
        if not self._can_append:
            self._rewrite()
        self._add(row)
        self._can_append = False  # stays so after an error: a new line must not continue a torn one
        with report_final_path(self._path), _open_text(self._path, "a") as file:
            _write_row(file, row)
        self._can_append = self._has_appended = True

    def finish(self) -> None:
        """Remove replaced rows, and force the table to disk."""
        if self._has_replaced:
            self._rewrite()
        elif self._has_appended:
            force_to_disk(self._path)

    def _add(self, row: ExtractionRow) -> None:
        keys = self._keys.setdefault(row.slide_id, set())
        for key in [key for key in keys if row.replaces(self._rows[key])]:
            del self._rows[key]
            keys.discard(key)
            self._has_replaced = True
        self._rows[row.key] = row
        keys.add(row.key)

    def _rewrite(self) -> None:
        with atomic_write(self._path) as partial, _open_text(partial, "w") as file:
            csv.writer(file, lineterminator="\n").writerow(_COLUMNS)
            for row in self._rows.values():
                _write_row(file, row)
        self._can_append, self._has_replaced = True, False


def _write_row(file: IO[str], row: ExtractionRow) -> None:
    csv.writer(file, lineterminator="\n").writerow(escape_cells(astuple(row)))


def _open_text(path: Path, mode: str) -> IO[str]:
    return path.open(mode, newline="", encoding="utf-8")


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


# Finished slides -------------------------------------------------------------------------------


class FinishedSlides:
    """The digests of finished slides in an output folder; losing them only costs time.

    Args:
        out: the output folder.
    """

    def __init__(self, out: Path) -> None:
        self._path = out / _FINISHED_FILE
        self._digests = _read_digests(self._path)
        self._saved_digests = dict(self._digests)

    def find_row(self, request: SlideRequest, table: ExtractionTable) -> ExtractionRow | None:
        """Return the row of a slide that is finished; None if it must be opened."""
        digest = _compute_digest(request, map(read_stamp, (request.path, request.outline_path)))
        if digest is None or self._digests.get(json.dumps(request.key)) != digest:
            return None
        row = table.find(request.key)
        return row if row is not None and row.status == "done" else None

    def add(self, request: SlideRequest, sources: Iterable[FileStamp | None]) -> None:
        """Remember a finished slide.

        Args:
            request: the slide and its settings.
            sources: stamps of the slide and its outline from before they were read.
        """
        digest = _compute_digest(request, sources)
        if digest is not None:
            self._digests[json.dumps(request.key)] = digest

    def write(self) -> None:
        """Save the digests, if they changed."""
        if self._digests != self._saved_digests:
            with atomic_write(self._path) as partial:
                partial.write_text(json.dumps(self._digests, indent=0), encoding="utf-8")
            self._saved_digests = dict(self._digests)


def _read_digests(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _compute_digest(request: SlideRequest, sources: Iterable[FileStamp | None]) -> str | None:
    """Return a digest of everything that decides whether a slide is finished.

    None if a file is missing.
    """
    outputs = (request.preview_path, request.tiles_path, request.bag_path)
    stamps = [*sources, *(read_stamp(path) for path in outputs if path)]
    if None in stamps:
        return None
    mpp = request.settings.resolutions.find(request.path)  # of this slide, not of thousands
    settings = replace(request.settings, resolutions=SlideResolutions())
    path = str(request.path.resolve())
    stamp_texts = ", ".join(map(_to_stable_text, stamps))
    facts = f"({__version__!r}, {path!r}, [{stamp_texts}], {mpp!r}, {_to_stable_text(settings)})"
    text = f"({facts}, {_to_stable_text(request.encoder)})"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _to_stable_text(record: object) -> str:
    """Return the text of a record as ``repr`` gave it before its names changed.

    Otherwise a rename would change all digests, and every slide would be opened again.
    """
    names = list(getattr(record, "_fields", ()))
    if is_dataclass(record):
        names = [field.name for field in fields(record)]
    if not names:
        return repr(record)
    title, *labels = (_STABLE_NAMES.get(name, name) for name in (type(record).__qualname__, *names))
    texts = [_to_stable_text(getattr(record, name)) for name in names]
    cells = ", ".join(f"{label}={text}" for label, text in zip(labels, texts, strict=True))
    return f"{title}({cells})"
