"""Which files may be read: those that lie, links followed, below one of a few folders."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sacmil.errors import RunError


class Place(NamedTuple):
    """A regular file that may be read, and what changes when it is written again."""

    path: Path
    """Without links."""
    inode: int
    modified_ns: int
    size: int
    may_name_others: bool = False
    """Whether further files it names may be opened, as in a folder the user named."""

    def read(self, most_bytes: int) -> bytes:
        """All of it, unless that is more than a page should be sent."""
        with self.path.open("rb") as file:
            found = file.read(most_bytes + 1)
        if len(found) > most_bytes:
            raise RunError(
                f"{self.path.name}: has {self.size:,} bytes; expected at most {most_bytes:,}"
            )
        return found


def inside(path: Path, folders: Sequence[Path]) -> Path | None:
    """Where a path leads once its links are followed; None where that is in none of the folders.

    Args:
        path: need not exist.
        folders: without links themselves.
    """
    try:
        target = path.resolve()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, links in a circle
        return None
    return target if any(folder in target.parents for folder in folders) else None


def place_of(path: Path, folders: Sequence[Path]) -> Place | None:
    """The file at a path; None where it lies elsewhere, is not there, or is no regular file."""
    target = inside(path, folders)
    if target is None:
        return None
    try:
        found = target.stat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for ever
        return None
    return Place(target, found.st_ino, found.st_mtime_ns, found.st_size)
