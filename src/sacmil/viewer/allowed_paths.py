"""Which files may be read: those that lie, links followed, below one of a few folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from sacmil.errors import RunError


class AllowedPath(NamedTuple):
    """A regular file that may be read, and what changes when it is written again."""

    path: Path
    """Without links."""
    inode: int
    modified_ns: int
    size: int
    can_open_others: bool = False
    """Whether further files it names may be opened, as in a folder the user named."""

    def read(self, max_bytes: int) -> bytes:
        """All of it, unless that is more than a page should be sent."""
        with self.path.open("rb") as file:
            found = file.read(max_bytes + 1)
        if len(found) > max_bytes:
            raise RunError(
                f"{self.path.name}: has {self.size:,} bytes; expected at most {max_bytes:,}"
            )
        return found


Resolve = Callable[[str], str]
"""Follows the links of a path, which need not exist."""


class FolderResolver:
    """Follows links, those of each folder once: only for a listing, as links may change."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def __call__(self, path: str) -> str:
        """Where a path leads."""
        folder, name = os.path.split(path)
        if name in ("", os.curdir, os.pardir):
            return os.path.realpath(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        target = f"{self._folders[folder].rstrip(os.sep)}{os.sep}{name}"
        try:
            is_link = stat.S_ISLNK(os.lstat(target).st_mode)
        except OSError:  # there is none
            return target
        return os.path.realpath(target) if is_link else target


def resolve_inside(
    path: str | Path, folders: Sequence[Path], resolve: Resolve = os.path.realpath
) -> str | None:
    """Where a path leads once its links are followed; None where that is in none of the folders.

    Args:
        path: need not exist.
        folders: without links themselves.
        resolve: follows the links.
    """
    try:
        target = resolve(os.fspath(path))
    except (OSError, ValueError):  # too long, a NUL
        return None
    return target if target.startswith(_make_prefixes(tuple(folders))) else None


@lru_cache
def _make_prefixes(folders: tuple[Path, ...]) -> tuple[str, ...]:
    """How the paths of everything in the folders begin."""
    return tuple(f"{str(each).rstrip(os.sep)}{os.sep}" for each in folders)


def has_file(path: str | Path, folders: Sequence[Path], resolve: Resolve) -> bool:
    """Whether ``find_allowed_path`` finds a file there."""
    return _find_file(path, folders, resolve) is not None


def find_allowed_path(
    path: str | Path, folders: Sequence[Path], resolve: Resolve = os.path.realpath
) -> AllowedPath | None:
    """The file at a path; None where it lies elsewhere, is not there, or is no regular file."""
    found = _find_file(path, folders, resolve)
    if found is None:
        return None
    target, status = found
    return AllowedPath(Path(target), status.st_ino, status.st_mtime_ns, status.st_size)


def _find_file(
    path: str | Path, folders: Sequence[Path], resolve: Resolve
) -> tuple[str, os.stat_result] | None:
    target = resolve_inside(path, folders, resolve)
    if target is None:
        return None
    try:
        status = os.stat(target)  # noqa: PTH116 - of thousands of files, with no time for pathlib
    except (OSError, ValueError):
        return None
    # opening a pipe would wait for ever
    return (target, status) if stat.S_ISREG(status.st_mode) else None
