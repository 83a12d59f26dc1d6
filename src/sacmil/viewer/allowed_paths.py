"""The files the viewer may read: after links are resolved, they are in one of a few folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from sacmil.errors import RunError, SlideError
from sacmil.results import SlideResult
from sacmil.slides.search import find_slides

Resolve = Callable[[str], str]
"""Resolves the links of a path, which need not exist."""
_RESTART_HINT = "start the viewer again with the slide folder"


class AllowedPath(NamedTuple):
    """A regular file that may be read, with the fields that change when it is rewritten."""

    path: Path
    """With links resolved."""
    inode: int
    modified_ns: int
    size: int
    can_open_others: bool = False
    """Whether files it refers to may be opened: only in folders the user named."""

    def read(self, max_bytes: int) -> bytes:
        """Return the content, or raise a RunError if it exceeds a number of bytes."""
        with self.path.open("rb") as file:
            found = file.read(max_bytes + 1)
        if len(found) > max_bytes:
            raise RunError(
                f"{self.path.name}: has {self.size:,} bytes; expected at most {max_bytes:,}"
            )
        return found


def make_folder_resolver() -> Resolve:
    """Return a function that resolves links, those of each folder once.

    Use it for one listing: links may change.
    """
    resolve_folder = cache(os.path.realpath)

    def resolve(path: str) -> str:
        folder, name = os.path.split(path)
        if name in ("", os.curdir, os.pardir):
            return os.path.realpath(path)
        target = f"{resolve_folder(folder).rstrip(os.sep)}{os.sep}{name}"
        try:
            is_link = stat.S_ISLNK(os.lstat(target).st_mode)
        except OSError:  # it does not exist
            return target
        return os.path.realpath(target) if is_link else target

    return resolve


def resolve_inside(
    path: str | Path, folders: Sequence[Path], resolve: Resolve = os.path.realpath
) -> str | None:
    """Return a path with its links resolved, or None if it is in none of the folders.

    Args:
        path: need not exist.
        folders: with links resolved.
        resolve: resolves the links.
    """
    try:
        target = resolve(os.fspath(path))
    except (OSError, ValueError):  # too long, a NUL
        return None
    return target if target.startswith(_make_prefixes(tuple(folders))) else None


@lru_cache
def _make_prefixes(folders: tuple[Path, ...]) -> tuple[str, ...]:
    """Return the prefixes of all paths in the folders."""
    return tuple(f"{str(each).rstrip(os.sep)}{os.sep}" for each in folders)


def find_allowed_path(
    path: str | Path, folders: Sequence[Path], resolve: Resolve = os.path.realpath
) -> AllowedPath | None:
    """Return the file at a path; None if it is outside, missing or not a regular file."""
    target = resolve_inside(path, folders, resolve)
    if target is None:
        return None
    try:
        status = os.stat(target)  # noqa: PTH116 - called for thousands of files, and pathlib is slow
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would block forever
        return None
    return AllowedPath(Path(target), status.st_ino, status.st_mtime_ns, status.st_size)


class SlideLocator:
    """Finds slides in the results folder and in the folders the user named.

    Args:
        folder: of the results.
        slide_folders: further folders, searched recursively for slides that are not at the path
            in results.json.
    """

    def __init__(self, folder: Path, slide_folders: Sequence[Path] = ()) -> None:
        self._folder = folder
        self._slide_folders = tuple(each.resolve() for each in slide_folders)
        self._all_folders = (folder.resolve(), *self._slide_folders)

    def find(self, slide: SlideResult, resolve: Resolve = os.path.realpath) -> AllowedPath:
        """Return the slide's file, or raise a SlideError that says how to find it.

        Args:
            slide: as listed in results.json.
            resolve: resolves links.
        """
        reasons = []
        for path in self._iter_candidates(slide):
            found = find_allowed_path(path, self._all_folders, resolve)
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
        if resolve_inside(path, self._all_folders, resolve):
            return (
                f"{path}: there is no such file; copy the slide there, or "
                f"{_RESTART_HINT} of this slide"
            )
        try:
            folder = Path(resolve(str(path))).parent
        except (OSError, ValueError):
            return f"the slide's path is invalid; {_RESTART_HINT} of this slide"
        return f"the slide is outside the results folder; {_RESTART_HINT} {folder}"
