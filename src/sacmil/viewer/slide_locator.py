"""Finds the slides of a results folder that the viewer may read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from sacmil.errors import SlideError
from sacmil.results import SlideResult
from sacmil.slides.search import find_slides
from sacmil.viewer.allowed_paths import AllowedPath, Resolve, find_allowed_path, resolve_inside

_RESTART_HINT = "start the viewer again with the slide folder"


class SlideLocator:
    """Finds slides in the results folder and in the folders the user named.

    Args:
        folder: of the results.
        slide_folders: further folders, searched recursively for slides that are not at the path
            in results.json.
    """

    def __init__(self, folder: Path, slide_folders: Sequence[Path] = ()) -> None:
        self._folder = folder
        self._root = folder.resolve()
        self._slide_folders = tuple(each.resolve() for each in slide_folders)

    def find(self, slide: SlideResult, resolve: Resolve = os.path.realpath) -> AllowedPath:
        """Return the slide's file, or raise a SlideError that says how to find it.

        Args:
            slide: as listed in results.json.
            resolve: resolves links.
        """
        reasons = []
        for path in self._iter_candidates(slide):
            found = find_allowed_path(path, (self._root, *self._slide_folders), resolve)
            if found is not None:
                is_named = resolve_inside(path, self._slide_folders, resolve) is not None
                return found._replace(can_open_others=is_named)
            reasons.append(self._explain_missing(path, resolve))
        unknown = f"the path of this slide is unknown; {_RESTART_HINT} of this slide"
        raise SlideError(reasons[0] if reasons else unknown)

    def _iter_candidates(self, slide: SlideResult) -> Iterator[Path]:
        if slide.slide is not None:
            yield self._folder / slide.slide
        if isinstance(self._by_name, SlideError):
            raise self._by_name.with_traceback(None)
        if slide.slide_id in self._by_name:
            yield self._by_name[slide.slide_id]

    @cached_property
    def _by_name(self) -> dict[str, Path] | SlideError:
        """Slides in the further folders by name, or the error; searched once."""
        if not self._slide_folders:
            return {}
        try:
            return {path.stem: path for path in find_slides(self._slide_folders)}
        except SlideError as error:
            return error
        except OSError as error:
            return SlideError(f"{error.filename}: cannot be searched ({error.strerror})")

    def _explain_missing(self, path: Path, resolve: Resolve) -> str:
        if resolve_inside(path, (self._root, *self._slide_folders), resolve):
            return (
                f"{path}: there is no such file; copy the slide there, or "
                f"{_RESTART_HINT} of this slide"
            )
        try:
            folder = Path(resolve(str(path))).parent
        except (OSError, ValueError):
            return f"the slide's path is invalid; {_RESTART_HINT} of this slide"
        return f"the slide is outside the results folder; {_RESTART_HINT} {folder}"
