"""How many jobs share a GPU: one more as long as all of them together get faster.

Bags are short, so a single job leaves much of a large GPU idle. How much depends on the model, the
bags, the processor and the GPU, so it is measured: each time the number of jobs has changed, the
epochs of jobs that ran before and after are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import NamedTuple

import torch

from sacmil.parallel import WorkerPool

MAX_JOBS = 16
"""At once on a GPU."""
_LEAST_GAIN = 1.1
"""By how much more all jobs together must do in the same time for one more to be worth it."""
_SPARE_MEMORY = 1.25
"""Free memory that a further job needs, in what one took so far."""
_EPOCHS_TO_JUDGE = 2
"""Of each job after a change: the first began before it, or reads the bags."""


class Epoch(NamedTuple):
    """The newest epoch of a job."""

    number: int
    seconds: float


class SharedDevice:
    """The jobs on one device, and how many there may be.

    Args:
        most: jobs at once.
        measure_free: returns the bytes of the device's memory that are free; None lets ``most``
            jobs run from the beginning.
    """

    def __init__(self, most: int, measure_free: Callable[[], float] | None = None) -> None:
        self.most = max(1, most)
        self._measure_free = measure_free or (lambda: math.inf)
        self._free_at_start: float | None = None
        self.allowed = 1 if measure_free else self.most
        """Jobs that may run at once."""
        self.is_settled = self.allowed == self.most
        """Whether that number stays."""
        self._running: dict[int, int | None] = {}
        """The newest epoch of each job when their number last changed; None if not known yet."""
        self._is_new = True
        """Whether fewer jobs have run so far than are allowed."""
        self._before: dict[int, float] = {}
        """Seconds of an epoch of jobs when one less was allowed."""

    @property
    def has_room(self) -> bool:
        """Whether a further job may start."""
        return self.count < self.allowed

    @property
    def count(self) -> int:
        """Jobs that run now."""
        return len(self._running)

    def start(self, key: int) -> None:
        """Count a job that starts."""
        if self._free_at_start is None and not self.is_settled:
            self._free_at_start = self._measure_free()
        self._running[key] = None
        if self._is_new and not self.has_room:
            self._is_new = False
            self._running = dict.fromkeys(self._running)

    def end(self, key: int) -> None:
        """Count a job that has ended; one that takes its place changes little for the others."""
        del self._running[key]

    def judge(self, epochs: Mapping[int, Epoch]) -> None:
        """Allow one job more or less, once enough epochs of half of the jobs are known.

        Args:
            epochs: the newest of each job that has one.
        """
        if self.is_settled or self.has_room:
            return
        seconds = self._select_measured(epochs)
        if 2 * len(seconds) < self.count:
            return
        gain = self._compute_gain(seconds)
        if gain < _LEAST_GAIN:
            self.allowed -= gain < 1
            self.is_settled = True
        else:
            self._allow_another(seconds)

    def _select_measured(self, epochs: Mapping[int, Epoch]) -> dict[int, float]:
        """Return the seconds of an epoch of each job that did enough of them since the change."""
        found = {}
        for key in self._running.keys() & epochs.keys():
            number, seconds = epochs[key]
            first = self._running[key]
            if first is None:
                self._running[key] = number
            elif number >= first + _EPOCHS_TO_JUDGE:
                found[key] = seconds
        return found

    def _compute_gain(self, seconds: Mapping[int, float]) -> float:
        """Return how much more all jobs do together than with one less."""
        if self.allowed == 1:
            return math.inf
        # models differ, so a job is compared with itself; if all have ended, with those
        same = [key for key in seconds if key in self._before]
        now = fmean(seconds[key] for key in same or seconds)
        before = fmean(self._before[key] for key in same or self._before)
        return self.allowed / (self.allowed - 1) * before / now

    def _allow_another(self, seconds: Mapping[int, float]) -> None:
        assert self._free_at_start is not None
        free = self._measure_free()
        each = max(0.0, self._free_at_start - free) / self.count
        if self.allowed == self.most or free < _SPARE_MEMORY * each:
            self.is_settled = True
            return
        self._before, self._is_new = dict(seconds), True
        self.allowed += 1


def measure_free_memory(device: str) -> float:
    """Return the bytes of a GPU's memory that are free; 0 if that cannot be found out.

    Another process asks, and ends: CUDA takes some of the memory for every process that uses it.
    """
    with WorkerPool(1, memory_limit=0) as workers:
        workers.submit(device, read_free_memory, device, limit_s=120)
        outcome = workers.next_outcome()
    return float(outcome.value) if outcome and outcome.failure is None else 0.0


def read_free_memory(device: str) -> int:
    """Return the bytes of a GPU's memory that are free; run by a process of its own."""
    return torch.cuda.mem_get_info(device)[0]
