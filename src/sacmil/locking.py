"""A folder that one command at a time works in, and what killed ones left there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sacmil.atomic import remove_if_abandoned
from sacmil.errors import SacMILError


@contextmanager
def exclusive(folder: Path, *, purpose: str = "extraction") -> Iterator[None]:
    """A time during which nothing else of this kind may work in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{purpose}.lock").open("a") as lock:
        try:
            import fcntl
        except ModuleNotFoundError:  # Windows: two runs at once are not noticed there
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go when the process ends
        except BlockingIOError:
            raise SacMILError(
                f"another {purpose} is at work in {folder}; wait for it, or give another --out"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield


def remove_partial_files(folder: Path) -> None:
    """What a killed command had begun to write under names of its own."""
    for leftover in list(folder.rglob(".*.????????.partial")):
        remove_if_abandoned(leftover)
