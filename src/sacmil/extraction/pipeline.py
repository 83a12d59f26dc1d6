"""Slides in, bags out: readers in worker processes, encoders in threads, all busy at once.

For every slide a worker first surveys it (resolution, tissue, tiles), then workers read its tiles
batch by batch, and threads encode the batches. Slides are taken up in order, the next ones while
the last batches of the one before are still on their way. Batches never hold tiles of two slides,
so a bag does not depend on what else is extracted.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sacmil.bag import Bag
from sacmil.errors import SacMILError
from sacmil.extraction.assembly import assemble
from sacmil.extraction.encoding import EncoderThreads, Features
from sacmil.extraction.reading import Batch, read_batch
from sacmil.extraction.survey import Request, Survey, survey
from sacmil.parallel import Workers

_POLL_S = 0.05

Progress = Callable[[int, int], None]
"""Told how many more tiles have been encoded, and how many more have been found."""


class Extracted(NamedTuple):
    """What became of a slide."""

    path: Path
    survey: Survey | None
    bag: Bag | None
    """Where features were wanted and were not there already."""
    failure: str | None
    seconds: float
    """From the first tile asked for to the last encoded."""


@dataclass(eq=False)
class _Job:
    """A slide under way."""

    request: Request
    started: float | None = None
    """When the first of its tiles was asked for: before that it only waited for its turn."""
    survey: Survey | None = None
    failure: str | None = None
    unread: deque[int] = field(default_factory=deque)
    """Batches no worker has been asked for yet."""
    unencoded: int = 0
    """Batches whose features are not there yet."""
    kept: dict[int, Any] = field(default_factory=dict)
    """By batch, which tiles were kept."""
    features: dict[int, Features] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return 0.0 if self.started is None else time.monotonic() - self.started

    @property
    def is_over(self) -> bool:
        return self.failure is not None or (self.survey is not None and not self.unencoded)


class Pipeline:
    """Extracts slides one after the other, with everything busy.

    Args:
        workers: processes that open slides.
        threads: the encoder; None to stop when tiles are known.
        progress: told of tiles found and encoded.
    """

    def __init__(
        self,
        workers: Workers,
        threads: EncoderThreads | None,
        *,
        progress: Progress | None = None,
    ) -> None:
        self._workers, self._threads = workers, threads
        self._progress: Progress = progress or (lambda encoded, found: None)
        self._jobs: deque[_Job] = deque()
        self._encoding: deque[tuple[_Job, int, Future[Features]]] = deque()
        self._reading = 0
        # Every worker may be at a survey; tiles are read in the order of slides.
        self._slides_ahead = workers.count + 2
        # Enough batches under way that neither side waits, and no more: they hold pixels.
        self._most_batches = 2 * (workers.count + (threads.count if threads else 0))

    def run(self, requests: Iterable[Request]) -> Iterator[Extracted]:
        """What became of each slide, in the order given."""
        waiting = iter(requests)
        while True:
            while len(self._jobs) < self._slides_ahead:
                if (request := next(waiting, None)) is None:
                    break
                self._begin(request)
            if not self._jobs:
                return
            self._ask_for_batches()
            self._take_what_was_read()
            self._take_what_was_encoded()
            while self._jobs and self._jobs[0].is_over:
                yield self._finished(self._jobs.popleft())

    def _begin(self, request: Request) -> None:
        job = _Job(request)
        self._jobs.append(job)
        limit = request.settings.slide_limit_s
        self._workers.submit((job, None), survey, request, limit_s=limit)

    def _ask_for_batches(self) -> None:
        for job in self._jobs:
            while job.unread and self._reading + len(self._encoding) < self._most_batches:
                self._ask_for_batch(job, job.unread.popleft())

    def _ask_for_batch(self, job: _Job, index: int) -> None:
        assert job.survey is not None
        assert job.survey.tiles is not None
        job.started = job.started or time.monotonic()
        size = job.request.batch_size
        corners = job.survey.tiles.coords[index * size : (index + 1) * size]
        limit = job.request.settings.tile_limit_s + 0.5 * len(corners)
        task = (job.request, job.survey.tiles.side, corners)
        self._workers.submit((job, index), read_batch, *task, limit_s=limit)
        self._reading += 1

    def _take_what_was_read(self) -> None:
        if self._encoding and not self._workers.under_way:
            wait([self._encoding[0][2]], _POLL_S)  # asking again and again would slow it down
            return
        outcome = self._workers.next_outcome(_POLL_S)
        if outcome is None:
            return
        job, index = outcome.key
        self._reading -= index is not None
        if job.failure is None and outcome.failure is not None:
            self._give_up(job, outcome.failure)
        elif job.failure is None and index is None:
            self._plan(job, outcome.value)
        elif job.failure is None:
            self._encode(job, index, outcome.value)

    def _plan(self, job: _Job, found: Survey) -> None:
        job.survey = found
        if self._threads is None or found.tiles is None or found.bag_is_there:
            return
        job.unencoded = -(-len(found.tiles.coords) // job.request.batch_size)
        job.unread.extend(range(job.unencoded))
        self._progress(0, len(found.tiles.coords))

    def _encode(self, job: _Job, index: int, batch: Batch) -> None:
        assert self._threads is not None
        job.kept[index] = batch.kept
        self._encoding.append((job, index, self._threads.submit(batch.pixels)))

    def _take_what_was_encoded(self) -> None:
        while self._encoding and self._encoding[0][2].done():
            job, index, future = self._encoding.popleft()
            job.unencoded -= 1
            try:
                job.features[index] = future.result()
            except SacMILError as error:
                self._give_up(job, str(error))
                continue
            self._progress(len(job.kept[index]), 0)
        for job in self._jobs:
            limit = job.request.settings.slide_limit_s
            if not job.is_over and job.seconds > limit:
                self._give_up(job, f"took longer than {limit:g} s")

    def _give_up(self, job: _Job, reason: str) -> None:
        job.failure = job.failure or reason
        job.unread.clear()

    def _finished(self, job: _Job) -> Extracted:
        bag = None
        if job.failure is None and job.features:
            assert job.survey is not None
            order = sorted(job.features)
            try:
                bag = assemble(
                    job.request,
                    job.survey,
                    [job.kept[index] for index in order],
                    [job.features[index] for index in order],
                )
            except SacMILError as error:
                job.failure = str(error)
        return Extracted(job.request.path, job.survey, bag, job.failure, job.seconds)
