"""The content of a results folder by slide and model number, independent of HTTP."""

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
"""How many outlines and scores are made at the same time, each in a process."""
_DOCUMENT_LIMIT_S = 120.0


class NotFoundError(LookupError):
    """The requested content does not exist; the message says what is missing."""


class ResultsApi:
    """The content of a results folder for the page; thread-safe.

    results.json is read once, so the numbers of slides and models never change their meaning.
    Methods raise a SacMILError for an invalid file and a NotFoundError for a missing one.

    Args:
        folder: of the results.
        slide_folders: further folders that may contain slides.
        processes: that read slides.
        document_processes: that make outlines and scores; separate, so that tiles do not wait.
        cache: of response bodies.
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
        """Return the list of slides as gzipped JSON."""

        def make() -> bytes:
            resolve = FolderResolver()
            folder, root = str(self._folder), (self._root,)

            def is_readable(path: str | None) -> bool:
                # pathlib would take most of the time
                return path is not None and has_file(
                    os.path.join(folder, path),  # noqa: PTH118
                    root,
                    resolve,
                )

            def find(slide: SlideResult) -> AllowedPath:
                return self._locator.find(slide, resolve)

            return documents.pack_json(
                make_results_document(self._root.name, self._results, find, is_readable)
            )

        return self._cache.get("results", make)

    def get_slide(self, number: int) -> dict[str, Any]:
        """Return the size and levels of a slide, or the reason why it cannot be shown."""
        slide = self._find_slide(number)
        shown: dict[str, Any] = {"size": slide.size, "mpp": slide.mpp, "tile": TILE_PX, "levels": 0}
        shown |= {"zoomable": False, "bounds": None}
        try:
            shape = self._processes.call(read_shape, self._locator.find(slide), slide.size)
        except SacMILError as error:
            return shown | {"reason": str(error)}
        mpp = shape.mpp if slide.mpp is None else slide.mpp
        return shown | shape._asdict() | {"mpp": mpp, "zoomable": True, "reason": None}

    def get_tile(self, number: int, level: int, x: int, y: int) -> bytes:
        """Return a Deep Zoom tile as JPEG."""
        slide = self._find_slide(number)
        path = self._locator.find(slide)

        def make() -> bytes:
            tile = self._processes.call(read_tile, path, slide.size, level, x, y)
            if tile is None:
                raise NotFoundError(f"level {level} of the slide has no tile {x}, {y}")
            return tile

        return self._cache.get((path, level, x, y), make)

    def get_thumbnail(self, number: int) -> tuple[bytes, str]:
        """Return the picture and its media type."""
        path = self._find_file(self._find_slide(number).thumbnail, "thumbnail")
        picture = self._cache.get(("thumbnail", path), lambda: documents.read_picture(path))
        return picture, documents.find_media_type(picture)

    def get_truth(self, number: int) -> bytes:
        """Return the ground truth as gzipped GeoJSON."""
        path = self._find_file(self._find_slide(number).truth, "truth")
        return self._cache.get(
            ("truth", path), lambda: self._document_processes.call(documents.read_truth, path)
        )

    def get_scores(self, number: int, model: int) -> bytes:
        """Return the positions of tiles and a model's scores as gzipped JSON."""
        slide = self._find_slide(number)
        models = self._results.models
        if not 0 <= model < len(models):
            raise NotFoundError(f"there is no model {model}; the folder has {len(models)}")
        name = models[model].name
        prediction = next((each for each in slide.answers if each.model == name), None)
        path = self._find_file(prediction.scores if prediction else None, "heatmap of this model")

        def make() -> bytes:
            return self._document_processes.call(
                documents.read_tile_scores, path, self._results.classes
            )

        return self._cache.get(("scores", path), make)

    def interrupt(self) -> None:
        """Kill the reading processes, so that no thread waits for them."""
        self._processes.interrupt()
        self._document_processes.interrupt()

    def close(self) -> None:
        """End the reading processes."""
        self._processes.close()
        self._document_processes.close()

    def _find_slide(self, number: int) -> SlideResult:
        if not 0 <= number < len(self._results.slides):
            raise NotFoundError(
                f"there is no slide {number}; the folder has {len(self._results.slides)}"
            )
        return self._results.slides[number]

    def _find_file(self, path: str | None, kind: str) -> AllowedPath:
        found = find_allowed_path(self._folder / path, (self._root,)) if path is not None else None
        if found is None:
            raise NotFoundError(f"there is no {kind} for this slide in the folder")
        return found
