"""Time of a call: the best of several, contestants taking turns so that they share the weather."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_times(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of the fastest of some repeats of each call, after one that is not counted."""
    for call in calls.values():
        call()
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best
