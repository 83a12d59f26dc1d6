"""Everything that can be asked of a results folder, by number; knows no HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sacmil.errors import SacMILError
from sacmil.results import SlideResult, read_results
from sacmil.viewer import documents
from sacmil.viewer.allowed_paths import AllowedPath, FolderResolver, find_allowed_path, has_file
from sacmil.viewer.byte_cache import ByteCache
from sacmil.viewer.catalogue import make_results_document
from sacmil.viewer.deep_zoom import TILE_PX
from sacmil.viewer.slide_locator import SlideLocator
from sacmil.viewer.slide_processes import SlideProcesses
from sacmil.viewer.slide_reading import read_shape, read_tile

DOCUMENTS_AT_ONCE = 2
"""Outlines and scores that are made at the same time, each in a process."""
_DOCUMENT_LIMIT_S = 120.0


class NotFoundError(LookupError):
    """What was asked for is not there; says so in a sentence."""


class ResultsApi:
    """A results folder as the page asks for it; for any number of threads.

    results.json is read once: numbers of slides and models mean the same as long as this lives.
    What can be wrong with a file is a SacMILError, what is not there an AbsentError.

    Args:
        folder: of the results.
        slide_folders: where slides may lie besides.
        processes: that read slides.
        document_processes: that make outlines and scores; others, so that tiles do not wait.
        cache: of answers.
    """

    def __init__(
        self,
        folder: str | Path,
        slide_folders: Sequence[str | Path] = (),
        *,
        processes: SlideProcesses | None = None,
        document_processes: SlideProcesses | None = None,
        cache: ByteCache | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._results = read_results(folder)
        self._root = self._folder.resolve()
        self._locator = SlideLocator(self._folder, [Path(each) for each in slide_folders])
        self._processes = processes or SlideProcesses()
        self._document_processes = document_processes or SlideProcesses(
            DOCUMENTS_AT_ONCE, limit_s=_DOCUMENT_LIMIT_S
        )
        self._cache = cache or ByteCache()

    def get_results(self) -> bytes:
        """Gzipped JSON: the list of slides."""

        def make() -> bytes:
            resolve = FolderResolver()
            folder, root = str(self._folder), (self._root,)

            def is_there(path: str | None) -> bool:
                # pathlib would take most of the time
                return path is not None and has_file(
                    os.path.join(folder, path),  # noqa: PTH118
                    root,
                    resolve,
                )

            def find(slide: SlideResult) -> AllowedPath:
                return self._locator.find(slide, resolve)

            return documents.pack_json(
                make_results_document(self._root.name, self._results, find, is_there)
            )

        return self._cache.get("results", make)

    def get_slide(self, number: int) -> dict[str, Any]:
        """What a zooming page must know of a slide, or why it cannot be zoomed into."""
        slide = self._find_slide(number)
        told: dict[str, Any] = {"size": slide.size, "mpp": slide.mpp, "tile": TILE_PX, "levels": 0}
        told |= {"zoomable": False, "bounds": None}
        try:
            shape = self._processes.call(read_shape, self._locator.find(slide), slide.size)
        except SacMILError as error:
            return told | {"why_not": str(error)}
        mpp = shape.mpp if slide.mpp is None else slide.mpp
        return told | shape._asdict() | {"mpp": mpp, "zoomable": True, "why_not": None}

    def get_tile(self, number: int, level: int, x: int, y: int) -> bytes:
        """A Deep Zoom tile as JPEG."""
        slide = self._find_slide(number)
        place = self._locator.find(slide)

        def make() -> bytes:
            tile = self._processes.call(read_tile, place, slide.size, level, x, y)
            if tile is None:
                raise NotFoundError(f"level {level} of the slide has no tile {x}, {y}")
            return tile

        return self._cache.get((place, level, x, y), make)

    def get_thumbnail(self, number: int) -> tuple[bytes, str]:
        """The picture and its media type."""
        place = self._find_file(self._find_slide(number).thumbnail, "thumbnail")
        found = self._cache.get(("thumbnail", place), lambda: documents.read_picture(place))
        return found, documents.find_media_type(found)

    def get_truth(self, number: int) -> bytes:
        """Gzipped GeoJSON."""
        place = self._find_file(self._find_slide(number).truth, "truth")
        return self._cache.get(
            ("truth", place), lambda: self._document_processes.call(documents.read_truth, place)
        )

    def get_scores(self, number: int, model: int) -> bytes:
        """Gzipped JSON: where tiles are and what a model gave them."""
        slide = self._find_slide(number)
        if not 0 <= model < len(self._results.models):
            raise NotFoundError(f"there is no model {model}; {len(self._results.models)} are known")
        name = self._results.models[model].name
        answer = next((answer for answer in slide.answers if answer.model == name), None)
        place = self._find_file(answer.scores if answer else None, "heatmap of this model")

        def make() -> bytes:
            return self._document_processes.call(
                documents.read_tile_scores, place, self._results.classes
            )

        return self._cache.get(("scores", place), make)

    def interrupt(self) -> None:
        """End what is being read, so that nobody has to wait for it."""
        self._processes.interrupt()
        self._document_processes.interrupt()

    def close(self) -> None:
        """Let the slides go."""
        self._processes.close()
        self._document_processes.close()

    def _find_slide(self, number: int) -> SlideResult:
        if not 0 <= number < len(self._results.slides):
            raise NotFoundError(
                f"there is no slide {number}; the folder has {len(self._results.slides)}"
            )
        return self._results.slides[number]

    def _find_file(self, path: str | None, kind: str) -> AllowedPath:
        place = find_allowed_path(self._folder / path, (self._root,)) if path is not None else None
        if place is None:
            raise NotFoundError(f"there is no {kind} for this slide in the folder")
        return place
