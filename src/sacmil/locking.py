"""Lock a folder for one writer at a time, and remove partial files of killed commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sacmil.atomic import remove_if_abandoned
from sacmil.errors import OptionError, SacMILError


@contextmanager
def exclusive(folder: Path, *, purpose: str = "extraction") -> Iterator[None]:
    """Hold the exclusive lock of a folder for one purpose.

    Raises:
        SacMILError: another process holds it, or it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder}: is a file; expected a folder, choose another `out`")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{purpose}.lock").open("a") as lock:
        try:
            import fcntl
        except ModuleNotFoundError:  # Windows: two runs at once are not detected there
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends
        except BlockingIOError:
            raise SacMILError(
                f"another {purpose} is running in {folder}; wait for it, or give another `out`"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield


def remove_partial_files(folder: Path) -> None:
    """Remove the partial files that killed commands left in a folder."""
    for leftover in list(folder.rglob(".*.????????.partial")):
        remove_if_abandoned(leftover)
