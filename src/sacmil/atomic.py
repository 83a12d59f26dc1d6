"""Files that are whole or not there: written beside, forced to disk, then renamed."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A path to write to; it takes its final name only when the block ends without an error."""
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = _beside(final)
    try:
        yield partial
        _force_to_disk(partial)
        partial.replace(final)
        _force_to_disk(final.parent)
    except OSError as error:
        error.filename = error.filename or str(final)  # a full disk does not say which file
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """A folder to fill; it takes its final name, replacing an older one, only when complete."""
    final = Path(path).resolve()  # a link to a folder stays one
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = _beside(final)
    partial.mkdir()
    try:
        yield partial
        for file in partial.iterdir():
            _force_to_disk(file)
        _swap(partial, final)
        _force_to_disk(final.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _beside(final: Path) -> Path:
    start = os.fsdecode(os.fsencode(final.name)[:200])  # names may hold 255 bytes
    return final.parent / f".{start}.{uuid.uuid4().hex[:8]}.partial"


def _force_to_disk(path: Path) -> None:
    if os.name == "nt":  # Windows cannot open folders, and flushes files on close
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _swap(partial: Path, final: Path) -> None:
    """The partial folder gets the final name; what had it before, if anything, is removed."""
    if not final.exists():
        partial.rename(final)
    elif not _exchange(partial, final):
        older = _beside(final)
        final.rename(older)
        try:
            partial.rename(final)
        except OSError:
            older.rename(final)
            raise
        shutil.rmtree(older)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step, so that neither is ever missing; False where that cannot be."""
    if not sys.platform.startswith("linux"):
        return False
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)  # absent from old C libraries
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2 and renameat2(here, bytes(one), here, bytes(other), exchange) == 0)
