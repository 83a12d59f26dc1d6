"""What a damaged slide makes of the process that reads it."""

from __future__ import annotations

import os
import threading
from typing import Any


def die(place: Any) -> None:
    """As a C library does."""
    os.abort()


def hang(place: Any) -> None:
    """For ever."""
    threading.Event().wait()


def devour(place: Any) -> int:
    """More memory than there is."""
    return len(bytearray(2**40))


def name(place: Any) -> str:
    """What a good slide gives."""
    return str(place.path)


def process(place: Any) -> int:
    """Who reads."""
    threading.Event().wait(0.01)
    return os.getpid()


def read_all_but_deadly(paths: Any) -> Any:
    """Read headers of bags; a file called deadly ends the process, as a damaged one can."""
    from sacmil.cohorts.bag_headers import read_batch

    if any(path.stem == "deadly" for path in paths):
        os.abort()
    return read_batch(paths)
