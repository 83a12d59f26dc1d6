"""The content of a results folder by slide and model number, independent of HTTP."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sacmil.errors import SacMILError
from sacmil.heatmap.colors import COLOR_SCALE, DIVERGING_COLOR_SCALE
from sacmil.heatmap.curves import DrawnCurve
from sacmil.results import SlideResult, StoredPrediction, read_results
from sacmil.tasks import Classification, from_card
from sacmil.viewer.allowed_paths import (
    AllowedPath,
    Resolve,
    SlideLocator,
    find_allowed_path,
    make_folder_resolver,
)
from sacmil.viewer.deep_zoom import TILE_PX
from sacmil.viewer.documents import pack_json, pack_scores, pack_truth, read_picture
from sacmil.viewer.slide_reading import read_shape, read_tile
from sacmil.viewer.workers import SlideProcesses

DOCUMENTS_AT_ONCE = 2
"""How many outlines and scores are made at the same time, each in a process."""
_DOCUMENT_LIMIT_S = 120.0
_MAX_CACHE_BYTES = 96 * 2**20


class NotFoundError(LookupError):
    """The requested content does not exist; the message says what is missing."""


class ByteCache:
    """A thread-safe cache of bytes that drops the least recently used.

    Args:
        max_bytes: of all entries together; larger values are not stored.
    """

    def __init__(self, max_bytes: int = _MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self.used_bytes = 0
        """Size of all entries."""
        self._stored: OrderedDict[Hashable, bytes] = OrderedDict()
        self._making: dict[Hashable, Future[bytes]] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return the entry of a key, made now if missing; threads that need it share one call."""
        with self._lock:
            if key in self._stored:
                self._stored.move_to_end(key)
                return self._stored[key]
            is_first = key not in self._making
            made = self._making.setdefault(key, Future())
        if is_first:
            self._make(key, make, made)
        return made.result()

    def _make(self, key: Hashable, make: Callable[[], bytes], made: Future[bytes]) -> None:
        try:
            made.set_result(make())
        except BaseException as error:
            made.set_exception(error)
        with self._lock:
            del self._making[key]
            if made.exception() is None and len(made.result()) <= self._max_bytes:
                self._stored[key] = made.result()
                self.used_bytes += len(made.result())
            while self.used_bytes > self._max_bytes:
                self.used_bytes -= len(self._stored.popitem(last=False)[1])


class ResultsApi:
    """The content of a results folder for the page; thread-safe.

    results.json is read once, so the numbers of slides and models never change their meaning.
    Every document is gzipped JSON. Methods raise a SacMILError for an invalid file and a
    NotFoundError for a missing one.

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
        self._task = (
            from_card(self._results.task)
            if self._results.task
            else Classification(self._results.classes)
        )
        self._root = self._folder.resolve()
        self._locator = SlideLocator(self._folder, [Path(each) for each in slide_folders])
        self._processes = processes or SlideProcesses()
        self._document_processes = document_processes or SlideProcesses(
            DOCUMENTS_AT_ONCE, limit_s=_DOCUMENT_LIMIT_S
        )
        self._cache = cache or ByteCache()

    def get_results(self) -> bytes:
        """Return the list of slides."""
        return self._cache.get("results", lambda: pack_json(self._describe_results()))

    def get_slide(self, number: int) -> bytes:
        """Return the size and levels of a slide, or the reason why it cannot be shown."""
        slide = self._find_slide(number)
        shown: dict[str, Any] = {"size": slide.size, "mpp": slide.mpp, "tile": TILE_PX, "levels": 0}
        shown |= {"zoomable": False, "bounds": None}
        try:
            shape = self._processes.call(read_shape, self._locator.find(slide), slide.size)
        except SacMILError as error:
            return pack_json(shown | {"reason": str(error)})
        mpp = shape.mpp if slide.mpp is None else slide.mpp
        return pack_json(shown | shape._asdict() | {"mpp": mpp, "zoomable": True, "reason": None})

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

    def get_thumbnail(self, number: int) -> bytes:
        """Return the picture, a JPEG or PNG."""
        path = self._find_file(self._find_slide(number).thumbnail, "thumbnail")
        return self._cache.get(("thumbnail", path), lambda: read_picture(path))

    def get_truth(self, number: int) -> bytes:
        """Return the ground truth as GeoJSON."""
        path = self._find_file(self._find_slide(number).truth, "truth")
        return self._cache.get(
            ("truth", path), lambda: self._document_processes.call(pack_truth, path)
        )

    def get_scores(self, number: int, model: int) -> bytes:
        """Return the positions of tiles and a model's scores."""
        slide = self._find_slide(number)
        models = self._results.models
        if not 0 <= model < len(models):
            raise NotFoundError(f"there is no model {model}; the folder has {len(models)}")
        name = models[model].name
        stored = next((each.scores for each in slide.answers if each.model == name), None)
        path = self._find_file(stored, "heatmap of this model")
        names = self._task.score_names
        return self._cache.get(
            ("scores", path), lambda: self._document_processes.call(pack_scores, path, names)
        )

    def interrupt(self) -> None:
        """Kill the reading processes, so that no thread waits for them."""
        self._processes.interrupt()
        self._document_processes.interrupt()

    def close(self) -> None:
        """End the reading processes."""
        self._processes.close()
        self._document_processes.close()

    def _find_slide(self, number: int) -> SlideResult:
        slides = self._results.slides
        if not 0 <= number < len(slides):
            raise NotFoundError(f"there is no slide {number}; the folder has {len(slides)}")
        return slides[number]

    def _find_file(self, path: str | None, kind: str) -> AllowedPath:
        found = find_allowed_path(self._folder / path, (self._root,)) if path is not None else None
        if found is None:
            raise NotFoundError(f"there is no {kind} for this slide in the folder")
        return found

    def _describe_results(self) -> dict[str, Any]:
        resolve = make_folder_resolver()
        task = self._task
        slides = [self._describe_slide(slide, resolve) for slide in self._results.slides]
        return {
            "title": self._root.name,
            "classes": list(self._results.classes),
            "task": task.kind,
            "levels": list(task.levels),
            "choices": self._list_choice_names(slides),
            "score_names": list(task.score_names),
            "score_names_title": task.names_title,
            "has_classes": task.has_classes,
            "are_probabilities": task.are_probabilities,
            "are_percentages": task.are_percentages,
            "diverging": task.diverging_scores,
            "score_effects": {name: task.describe_effects(name) for name in task.score_names},
            "models": [asdict(model) for model in self._results.models],
            "colors": COLOR_SCALE.tolist(),
            "diverging_colors": DIVERGING_COLOR_SCALE.tolist(),
            "slides": slides,
        }

    def _list_choice_names(self, slides: list[dict[str, Any]]) -> list[str]:
        """Return the names of all choices, in the order of the values."""
        found = (c["name"] for s in slides for p in s["predictions"] for c in p["choices"])
        used = dict.fromkeys(found)
        names = [name for name in self._name_values() if name in used]
        return names + [name for name in used if name not in names]

    def _name_values(self) -> tuple[str, ...]:
        """Return the names of the values as choices have them.

        The score names, if there is one for each value; otherwise their own names.
        """
        names = self._task.score_names
        return names if len(names) == len(self._results.classes) else self._task.value_names

    def _describe_slide(self, slide: SlideResult, resolve: Resolve) -> dict[str, Any]:
        """Return a slide as listed, and why it cannot be shown as far as known unopened."""
        reason = None
        try:
            self._locator.find(slide, resolve)
        except SacMILError as error:
            reason = str(error)
        return {
            "slide_id": slide.slide_id,
            "label": slide.label,
            "size": slide.size,
            "mpp": slide.mpp,
            "zoomable": reason is None,
            "reason": reason,
            "thumbnail": self._has_file(slide.thumbnail, resolve),
            "truth": self._has_file(slide.truth, resolve),
            "predictions": [self._describe_prediction(each, resolve) for each in slide.answers],
        }

    def _describe_prediction(self, found: StoredPrediction, resolve: Resolve) -> dict[str, Any]:
        summary = self._task.describe(found)
        spread = dict(zip(self._name_values(), found.spread or (), strict=False))
        choices = [{**c._asdict(), "spread": spread.get(c.name)} for c in summary.values]
        curve = DrawnCurve.from_prediction(self._task, found)
        return {
            "model": [model.name for model in self._results.models].index(found.model),
            "values": found.values,
            "spread": found.spread,
            "choices": choices,
            "predicted": summary.predicted,
            "headline": summary.headline,
            "curve": None if curve is None else curve._asdict(),
            "score_name": self._task.score_names[summary.score_column],
            "has_scores": self._has_file(found.scores, resolve),
        }

    def _has_file(self, path: str | None, resolve: Resolve) -> bool:
        if path is None:
            return False
        full = os.path.join(self._folder, path)  # noqa: PTH118 - pathlib would take most of the time
        return find_allowed_path(full, (self._root,), resolve) is not None
