"""Finds slides that an earlier run finished, without opening them.

A slide is finished if its settings and files have not changed since: the slide, its outline and all
outputs. Files are compared by size and time, so a rerun costs a few calls of ``stat`` per slide.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

from sacmil._version import __version__
from sacmil.atomic import atomic_write
from sacmil.extraction.prepare_slide import FileStamp, SlideRequest, read_stamp
from sacmil.extraction.table import ExtractionRow, ExtractionTable
from sacmil.slides.resolution import SlideResolutions

FILE_NAME = ".extraction.json"
_LABELS = {
    "ExtractionSettings": "Settings",
    "FileStamp": "Stamp",
    "EncoderInfo": "EncoderFacts",
    "can_resize": "resizes",
    "min_chroma_threshold": "faintest",
    "max_chroma_threshold": "boldest",
}
"""Names in digests that differ from those in the code; never change or remove one."""


class FinishedSlides:
    """The digests of finished slides in an output folder; losing them only costs time.

    Args:
        out: the output folder.
    """

    def __init__(self, out: Path) -> None:
        self._path = out / FILE_NAME
        self._digests = _read_digests(self._path)
        self._saved_digests = dict(self._digests)

    def find_row(self, request: SlideRequest, table: ExtractionTable) -> ExtractionRow | None:
        """Return the row of a slide that is finished; None if it must be opened."""
        outline, outputs = _list_files(request)
        digest = _compute_digest(request, (read_stamp(request.path), read_stamp(outline)), outputs)
        if digest is None or self._digests.get(_make_key(request)) != digest:
            return None
        row = table.find(request.slide_id, *_name_cut_and_encoder(request))
        return row if row is not None and row.status == "done" else None

    def add(self, request: SlideRequest, sources: tuple[FileStamp | None, ...]) -> None:
        """Remember a finished slide.

        Args:
            request: the slide and its settings.
            sources: stamps of the slide and its outline from before they were read.
        """
        digest = _compute_digest(request, sources, _list_files(request)[1])
        if digest is not None:
            self._digests[_make_key(request)] = digest

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


def _name_cut_and_encoder(request: SlideRequest) -> tuple[str, str]:
    """Return the names that the table uses."""
    cut = request.folder.cut_folder.name if request.folder and request.needs_tiles else ""
    return cut, request.encoder.name if request.encoder else ""


def _make_key(request: SlideRequest) -> str:
    return json.dumps([request.slide_id, *_name_cut_and_encoder(request)])


def _list_files(request: SlideRequest) -> tuple[Path, list[Path]]:
    """Return the path of a slide's outline, and those of its other outputs."""
    assert request.folder is not None
    folder, slide_id = request.folder, request.slide_id
    outputs = [folder.preview_path(slide_id)]
    if request.needs_tiles:
        outputs.append(folder.tiles_path(slide_id))
    if request.encoder is not None and (bag := folder.bag_path(slide_id)) is not None:
        outputs.append(bag)
    return folder.outline_path(slide_id), outputs


def _compute_digest(
    request: SlideRequest, sources: Iterable[FileStamp | None], outputs: Iterable[Path]
) -> str | None:
    """Return a digest of everything that decides whether a slide is finished.

    None if a file is missing.
    """
    stamps = [*sources, *map(read_stamp, outputs)]
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
    if is_dataclass(record):
        names = [field.name for field in fields(record)]
    else:
        names = list(getattr(record, "_fields", ()))
    if not names:
        return repr(record)
    cells = [f"{_get_label(name)}={_to_stable_text(getattr(record, name))}" for name in names]
    return f"{_get_label(type(record).__qualname__)}({', '.join(cells)})"


def _get_label(name: str) -> str:
    return _LABELS.get(name, name)
