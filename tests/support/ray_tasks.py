"""Tasks for actors of a cluster."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def wait_for(condition: Callable[[], Any], within_s: float = 120) -> Any:
    """What the condition returns once it is true."""
    end = time.monotonic() + within_s
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    assert found, "it never came to pass"
    return found


def make_double() -> Callable[[int], int]:
    return lambda item: 2 * item


def make_waiting(folder: Path) -> Callable[[int], int]:
    """Doubles once there is a file named ``go``."""

    def wait_and_double(item: int) -> int:
        wait_for((folder / "go").exists)
        return 2 * item

    return wait_and_double


def make_deadly() -> Callable[[int], int]:
    """Doubles, but item 1 kills its process."""

    def die_or_double(item: int) -> int:
        if item == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return 2 * item

    return die_or_double
