"""The files the viewer may read: after links are resolved, they are in one of a few folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from sacmil.errors import RunError


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


Resolve = Callable[[str], str]
"""Resolves the links of a path, which need not exist."""


class FolderResolver:
    """Resolves links, those of each folder once. Use it for one listing: links may change."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def __call__(self, path: str) -> str:
        """Return a path with its links resolved."""
        folder, name = os.path.split(path)
        if name in ("", os.curdir, os.pardir):
            return os.path.realpath(path)
        if folder not in self._folders:
            self._folders[folder] = os.path.realpath(folder)
        target = f"{self._folders[folder].rstrip(os.sep)}{os.sep}{name}"
        try:
            is_link = stat.S_ISLNK(os.lstat(target).st_mode)
        except OSError:  # it does not exist
            return target
        return os.path.realpath(target) if is_link else target


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


def has_file(path: str | Path, folders: Sequence[Path], resolve: Resolve) -> bool:
    """Whether ``find_allowed_path`` finds a file at a path."""
    return _find_file(path, folders, resolve) is not None


def find_allowed_path(
    path: str | Path, folders: Sequence[Path], resolve: Resolve = os.path.realpath
) -> AllowedPath | None:
    """Return the file at a path; None if it is outside, missing or not a regular file."""
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
        status = os.stat(target)  # noqa: PTH116 - called for thousands of files, and pathlib is slow
    except (OSError, ValueError):
        return None
    # opening a pipe would block forever
    return (target, status) if stat.S_ISREG(status.st_mode) else None
