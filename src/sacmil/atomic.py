"""Files that are whole or not there: written beside, forced to disk, then renamed."""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ModuleNotFoundError:  # Windows: what killed processes leave stays
    fcntl = None  # type: ignore[assignment]

_PARTIAL_SUFFIX = ".partial"


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A path to write to; it takes its final name only when the block ends without an error.

    What a killed process left of the same file is removed.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    with report_final_path(final), _hold_partial(final, _create_file) as partial:
        try:
            yield partial
            force_to_disk(partial)
            partial.replace(final)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        force_to_disk(final.parent)


@contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """A folder to fill; it takes its final name, replacing an older one, only when complete.

    What killed processes left of the same folder is removed.
    """
    final = Path(path).resolve()  # a link to a folder stays one
    final.parent.mkdir(parents=True, exist_ok=True)
    for leftover in _find_partials(final):
        remove_if_abandoned(leftover)
    with report_final_path(final), _hold_partial(final, Path.mkdir) as partial:
        try:
            yield partial
            for file in partial.rglob("*"):
                force_to_disk(file)
            _move_into_place(partial, final)
            force_to_disk(final.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def remove_if_abandoned(partial: Path) -> None:
    """Remove a partial file or folder, unless its writer lives or cannot be asked."""
    if fcntl is None:
        return
    try:
        descriptor = os.open(partial, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait
    except OSError:  # gone, or not ours
        return
    try:
        if not (_try_lock(descriptor) and _is_same_file(descriptor, partial)):
            return
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


@contextmanager
def report_final_path(final: Path) -> Iterator[None]:
    """Let every error of the disk name the file the user knows: a full disk names none."""
    try:
        yield
    except OSError as error:
        whole, mark, inside = str(error.filename or _PARTIAL_SUFFIX).partition(_PARTIAL_SUFFIX)
        if mark and not whole.endswith(os.sep):
            error.filename, error.filename2 = str(final / inside.lstrip(os.sep)), None
        raise


@contextmanager
def _hold_partial(final: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """A new file or folder beside the final one, locked until it has been renamed or removed.

    The lock ends with the process, so it tells what is being written from what is left over.
    """
    if fcntl is None:
        partial = _make_partial_path(final)
        create(partial)
        yield partial
        return
    partial, descriptor = _create_and_lock(final, create)
    try:
        yield partial
    finally:
        os.close(descriptor)


def _create_and_lock(final: Path, create: Callable[[Path], None]) -> tuple[Path, int]:
    # The name is always the same for a file, so that the next writer finds what is left over.
    partial = (
        _make_partial_path(final, "0" * 8) if create is _create_file else _make_partial_path(final)
    )
    while True:
        remove_if_abandoned(partial)
        try:
            create(partial)
        except FileExistsError:  # another writer of the same file is at work
            partial = _make_partial_path(final)
            continue
        try:
            descriptor = os.open(partial, os.O_RDONLY)
        except FileNotFoundError:  # removed as abandoned before it was locked
            continue
        _try_lock(descriptor)
        if _is_same_file(descriptor, partial):
            return partial, descriptor
        os.close(descriptor)


def _create_file(path: Path) -> None:
    path.touch(exist_ok=False)


def _try_lock(descriptor: int) -> bool:
    """Whether the file or folder is ours alone now; False too where there are no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _make_partial_path(final: Path, unique: str = "") -> Path:
    return (
        final.parent / f".{_shorten_name(final)}.{unique or uuid.uuid4().hex[:8]}{_PARTIAL_SUFFIX}"
    )


def _find_partials(final: Path) -> Iterator[Path]:
    return final.parent.glob(f".{glob.escape(_shorten_name(final))}.????????{_PARTIAL_SUFFIX}")


def _shorten_name(final: Path) -> str:
    return os.fsdecode(os.fsencode(final.name)[:200])  # names may hold 255 bytes


def force_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a power cut."""
    if os.name == "nt":  # Windows cannot open folders, and flushes files on close
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move_into_place(partial: Path, final: Path) -> None:
    """The partial folder gets the final name; what had it before, if anything, is removed."""
    if not final.exists():
        partial.rename(final)
    elif not _exchange_paths(partial, final):
        older = _make_partial_path(final)
        final.rename(older)
        try:
            partial.rename(final)
        except OSError:
            older.rename(final)
            raise
        shutil.rmtree(older)


def _exchange_paths(one: Path, other: Path) -> bool:
    """Swap two names in one step, so that neither is ever missing; False where that cannot be."""
    if not sys.platform.startswith("linux"):
        return False
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)  # absent from old C libraries
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2 and renameat2(here, bytes(one), here, bytes(other), exchange) == 0)
