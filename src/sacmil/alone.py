"""A folder that one command at a time works in, and what killed ones left there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sacmil.atomic import remove_if_abandoned
from sacmil.errors import SacMILError


@contextmanager
def alone_in(out: Path, *, what: str = "extraction") -> Iterator[None]:
    """A time during which nothing else of this kind may work in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / f".{what}.lock").open("a") as lock:
        try:
            import fcntl
        except ModuleNotFoundError:  # Windows: two runs at once are not noticed there
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go when the process ends
        except BlockingIOError:
            raise SacMILError(
                f"another {what} is at work in {out}; wait for it, or give another --out"
            ) from None
        except OSError:  # a file system without locks
            pass
        yield


def remove_leftovers(out: Path) -> None:
    """What a killed command had begun to write under names of its own."""
    for leftover in list(out.rglob(".*.????????.partial")):
        remove_if_abandoned(leftover)
