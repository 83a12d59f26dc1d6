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
from sacmil.atomic import whole_file
from sacmil.extraction.record import Record, Row
from sacmil.extraction.survey import Request, Stamp, stamp
from sacmil.slides.resolution import SlideResolutions

NAME = ".extraction.json"


class FinishedSlides:
    """The memory of an output folder; losing it costs time and nothing else.

    Args:
        out: the output folder.
    """

    def __init__(self, out: Path) -> None:
        self._path = out / NAME
        self._known = _read(self._path)
        self._before = dict(self._known)

    def find_row(self, request: Request, record: Record) -> Row | None:
        """What the table says of a slide that needs no work; None where it must be looked at."""
        outline, outputs = _files(request)
        digest = _digest(request, (stamp(request.path), stamp(outline)), outputs)
        if digest is None or self._known.get(_key(request)) != digest:
            return None
        row = record.find(request.slide_id, *_cut_and_encoder(request))
        return row if row is not None and row.status == "done" else None

    def add(self, request: Request, sources: tuple[Stamp | None, ...]) -> None:
        """Remember a slide that is done.

        Args:
            request: what was done.
            sources: of the slide and its outline, as they were when they were read.
        """
        digest = _digest(request, sources, _files(request)[1])
        if digest is not None:
            self._known[_key(request)] = digest

    def write(self) -> None:
        """Keep what is known."""
        if self._known != self._before:
            with whole_file(self._path) as partial:
                partial.write_text(json.dumps(self._known, indent=0), encoding="utf-8")
            self._before = dict(self._known)


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _cut_and_encoder(request: Request) -> tuple[str, str]:
    """As the table names them."""
    cut = request.folder.cut.name if request.folder and request.tiles_wanted else ""
    return cut, request.encoder.name if request.encoder else ""


def _key(request: Request) -> str:
    return json.dumps([request.slide_id, *_cut_and_encoder(request)])


def _files(request: Request) -> tuple[Path, list[Path]]:
    """The outline of a slide, and all else that is made of it."""
    assert request.folder is not None
    folder, slide_id = request.folder, request.slide_id
    made = [folder.preview(slide_id)]
    if request.tiles_wanted:
        made.append(folder.tiles(slide_id))
    if request.encoder is not None and (bag := folder.bag(slide_id)) is not None:
        made.append(bag)
    return folder.outline(slide_id), made


def _digest(
    request: Request, sources: Iterable[Stamp | None], outputs: Iterable[Path]
) -> str | None:
    """Of all that decides whether there is work to do; None where a file is missing."""
    stamps = [*sources, *map(stamp, outputs)]
    if None in stamps:
        return None
    mpp = request.settings.resolutions.of(request.path)  # of this slide, not of thousands
    settings = replace(request.settings, resolutions=SlideResolutions())
    facts = (__version__, str(request.path.resolve()), stamps, mpp, settings)
    return hashlib.sha256(repr((facts, request.encoder)).encode()).hexdigest()[:32]
