"""Functions that fail as reading a damaged slide does."""

from __future__ import annotations

import os
import threading
from typing import Any


def die(path: Any) -> None:
    """Abort, as a C library does."""
    os.abort()


def hang(path: Any) -> None:
    """Never return."""
    threading.Event().wait()


def devour(path: Any) -> int:
    """Allocate more memory than there is."""
    return len(bytearray(2**40))


def name(path: Any) -> str:
    """Return the path, as for a good slide."""
    return str(path.path)


def process(path: Any) -> int:
    """The id of the process that reads."""
    threading.Event().wait(0.01)
    return os.getpid()


def read_all_but_deadly(paths: Any) -> Any:
    """Read headers of bags; a file called deadly ends the process, as a damaged one can."""
    from sacmil.cohorts.bags import read_batch

    if any(path.stem == "deadly" for path in paths):
        os.abort()
    return read_batch(paths)
