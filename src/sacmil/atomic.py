"""Atomic writes: a file is written under a temporary name, forced to disk, then renamed."""

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

from sacmil.errors import OptionError, SacMILError

try:
    import fcntl
except ModuleNotFoundError:  # Windows: partial files of killed processes are not removed
    fcntl = None  # type: ignore[assignment]

_PARTIAL_SUFFIX = ".partial"


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to; the file gets its final name if the block raises no error.

    A partial file that a killed process left for the same path is removed.
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


def write_file(path: str | Path, content: str | bytes) -> None:
    """Write bytes, or a text as UTF-8, completely or not at all."""
    with atomic_write(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """Yield a folder to fill; when complete it gets its final name and replaces an older one.

    Partial folders that killed processes left for the same path are removed.
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
    """Remove a partial file or folder, unless its writer is alive or locks are unavailable."""
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
    """Put the final path into every OSError; an error of a full disk names no file itself."""
    try:
        yield
    except OSError as error:
        before, suffix, inside = str(error.filename or _PARTIAL_SUFFIX).partition(_PARTIAL_SUFFIX)
        if suffix and not before.endswith(os.sep):
            error.filename, error.filename2 = str(final / inside.lstrip(os.sep)), None
        raise


@contextmanager
def _hold_partial(final: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """Yield a new file or folder beside the final one, locked until it is renamed or removed.

    The lock ends with the process: a partial file without a lock has no writer any more.
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
    # A file's partial name is always the same, so that the next writer finds an abandoned one.
    partial = _make_partial_path(final, "0" * 8 if create is _create_file else "")
    while True:
        remove_if_abandoned(partial)
        try:
            create(partial)
        except FileExistsError:  # another process is writing the same file
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
    """Whether the exclusive lock was taken; False also where there are no locks."""
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
    unique = unique or uuid.uuid4().hex[:8]
    return final.with_name(f".{_shorten_name(final)}.{unique}{_PARTIAL_SUFFIX}")


def _find_partials(final: Path) -> Iterator[Path]:
    return final.parent.glob(f".{glob.escape(_shorten_name(final))}.????????{_PARTIAL_SUFFIX}")


def _shorten_name(final: Path) -> str:
    return os.fsdecode(os.fsencode(final.name)[:200])  # names may have 255 bytes


def force_to_disk(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, would survive a power cut."""
    if os.name == "nt":  # Windows cannot open folders, and flushes files on close
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move_into_place(partial: Path, final: Path) -> None:
    """Give the partial folder its final name; remove the folder that had it before, if any."""
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
    """Swap two names in one step, so that neither is ever missing; False if not supported."""
    if not sys.platform.startswith("linux"):
        return False
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)  # absent from old C libraries
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2 and renameat2(here, bytes(one), here, bytes(other), exchange) == 0)


@contextmanager
def exclusive(folder: Path, *, purpose: str = "extraction") -> Iterator[None]:
    """Hold the exclusive lock of a folder for one purpose; remove partial files left there.

    Raises:
        SacMILError: another process holds it, or it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder}: is a file; expected a folder, choose another `out`")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{purpose}.lock").open("a") as lock:
        try:
            if fcntl is not None:  # Windows: two runs at once are not detected there
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends
        except BlockingIOError:
            raise SacMILError(
                f"another {purpose} is running in {folder}; wait for it, or give another `out`"
            ) from None
        except OSError:  # a file system without locks
            pass
        remove_partial_files(folder)
        yield


def remove_partial_files(folder: Path) -> None:
    """Remove the partial files that killed commands left in a folder."""
    for leftover in list(folder.rglob(".*.????????.partial")):
        remove_if_abandoned(leftover)
