"""Which slides an earlier run finished, known without opening them.

A slide is finished if the settings, the slide, its outline and all that was made of it are as they
were when it was done. Files are compared by size and time, so a rerun costs a few looks per slide.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sacmil._version import __version__
from sacmil.atomic import atomic_write
from sacmil.extraction.prepare_slide import FileStamp, SlideRequest, read_stamp
from sacmil.extraction.table import ExtractionRow, ExtractionTable
from sacmil.slides.resolution import SlideResolutions

FILE_NAME = ".extraction.json"


class FinishedSlides:
    """The memory of an output folder; losing it costs time and nothing else.

    Args:
        out: the output folder.
    """

    def __init__(self, out: Path) -> None:
        self._path = out / FILE_NAME
        self._digests = _read_digests(self._path)
        self._saved_digests = dict(self._digests)

    def find_row(self, request: SlideRequest, table: ExtractionTable) -> ExtractionRow | None:
        """What the table says of a slide that needs no work; None where it must be looked at."""
        outline, outputs = _list_files(request)
        digest = _compute_digest(request, (read_stamp(request.path), read_stamp(outline)), outputs)
        if digest is None or self._digests.get(_make_key(request)) != digest:
            return None
        row = table.find(request.slide_id, *_name_cut_and_encoder(request))
        return row if row is not None and row.status == "done" else None

    def add(self, request: SlideRequest, sources: tuple[FileStamp | None, ...]) -> None:
        """Remember a slide that is done.

        Args:
            request: what was done.
            sources: of the slide and its outline, as they were when they were read.
        """
        digest = _compute_digest(request, sources, _list_files(request)[1])
        if digest is not None:
            self._digests[_make_key(request)] = digest

    def write(self) -> None:
        """Keep what is known."""
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
    """As the table names them."""
    cut = request.folder.cut_folder.name if request.folder and request.needs_tiles else ""
    return cut, request.encoder.name if request.encoder else ""


def _make_key(request: SlideRequest) -> str:
    return json.dumps([request.slide_id, *_name_cut_and_encoder(request)])


def _list_files(request: SlideRequest) -> tuple[Path, list[Path]]:
    """The outline of a slide, and all else that is made of it."""
    assert request.folder is not None
    folder, slide_id = request.folder, request.slide_id
    made = [folder.preview_path(slide_id)]
    if request.needs_tiles:
        made.append(folder.tiles_path(slide_id))
    if request.encoder is not None and (bag := folder.bag_path(slide_id)) is not None:
        made.append(bag)
    return folder.outline_path(slide_id), made


def _compute_digest(
    request: SlideRequest, sources: Iterable[FileStamp | None], outputs: Iterable[Path]
) -> str | None:
    """Of all that decides whether there is work to do; None where a file is missing."""
    stamps = [*sources, *map(read_stamp, outputs)]
    if None in stamps:
        return None
    mpp = request.settings.resolutions.find(request.path)  # of this slide, not of thousands
    settings = replace(request.settings, resolutions=SlideResolutions())
    facts = (__version__, str(request.path.resolve()), stamps, mpp, settings)
    return hashlib.sha256(repr((facts, request.encoder)).encode()).hexdigest()[:32]
