"""Extracts bags from slides: worker processes read tiles while threads encode them.

A worker first prepares each slide (resolution, tissue, tiles). Workers then read its tiles batch by
batch, and threads encode the batches. Slides start in order. The next ones start while the last
batches of the previous one are still being encoded. A batch never mixes tiles of two slides, so a
bag does not depend on what else is extracted.
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
from sacmil.extraction.assembly import assemble_bag
from sacmil.extraction.encoding import EncoderThreads, Features
from sacmil.extraction.prepare_slide import PreparedSlide, SlideRequest, prepare_slide
from sacmil.extraction.reading import TileBatch, read_batch
from sacmil.parallel import WorkerPool

_POLL_S = 0.05

TilesCallback = Callable[[int, int], None]
"""Called with the number of tiles newly encoded and newly found."""


class ExtractedSlide(NamedTuple):
    """The bag of a slide, or the reason why there is none."""

    path: Path
    prepared: PreparedSlide | None
    bag: Bag | None
    """None after a failure, without an encoder, or if the bag exists already."""
    failure: str | None
    seconds: float
    """From the first tile requested to the last one encoded."""


@dataclass(eq=False)
class _SlideJob:
    """A slide that is being extracted."""

    request: SlideRequest
    started: float | None = None
    """When its first tile was requested; before that it only waited."""
    prepared: PreparedSlide | None = None
    failure: str | None = None
    unread_batches: deque[int] = field(default_factory=deque)
    """Batches not requested from a worker yet."""
    unencoded_batches: int = 0
    """Batches not encoded yet."""
    kept: dict[int, Any] = field(default_factory=dict)
    """Which tiles were kept, by batch."""
    features: dict[int, Features] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return 0.0 if self.started is None else time.monotonic() - self.started

    @property
    def is_finished(self) -> bool:
        return self.failure is not None or (
            self.prepared is not None and not self.unencoded_batches
        )


class Pipeline:
    """Extracts slides in order; reading and encoding overlap.

    Args:
        workers: processes that open slides.
        threads: the encoders; None stops when tiles are known.
        on_tiles: called with the numbers of tiles encoded and found.
    """

    def __init__(
        self,
        workers: WorkerPool,
        threads: EncoderThreads | None,
        *,
        on_tiles: TilesCallback | None = None,
    ) -> None:
        self._workers, self._threads = workers, threads
        self._on_tiles: TilesCallback = on_tiles or (lambda encoded, found: None)
        self._jobs: deque[_SlideJob] = deque()
        self._encoding: deque[tuple[_SlideJob, int, Future[Features]]] = deque()
        self._reading = 0
        # Every worker may be preparing a slide; tiles are read in the order of slides.
        self._slides_ahead = workers.count + 2
        # Enough pending batches that neither side waits, and no more: they hold pixels.
        self._max_batches = 2 * (workers.count + (threads.count if threads else 0))

    def run(self, requests: Iterable[SlideRequest]) -> Iterator[ExtractedSlide]:
        """Yield the result of each slide, in the order given."""
        waiting = iter(requests)
        while True:
            while len(self._jobs) < self._slides_ahead:
                if (request := next(waiting, None)) is None:
                    break
                self._start_job(request)
            if not self._jobs:
                return
            self._request_batches()
            self._collect_read_batches()
            self._collect_encoded_batches()
            while self._jobs and self._jobs[0].is_finished:
                yield self._finish_job(self._jobs.popleft())

    def _start_job(self, request: SlideRequest) -> None:
        job = _SlideJob(request)
        self._jobs.append(job)
        limit = request.settings.slide_limit_s
        self._workers.submit((job, None), prepare_slide, request, limit_s=limit)

    def _request_batches(self) -> None:
        for job in self._jobs:
            while job.unread_batches and self._reading + len(self._encoding) < self._max_batches:
                self._request_batch(job, job.unread_batches.popleft())

    def _request_batch(self, job: _SlideJob, index: int) -> None:
        assert job.prepared is not None
        assert job.prepared.tiles is not None
        job.started = job.started or time.monotonic()
        size = job.request.batch_size
        corners = job.prepared.tiles.coords[index * size : (index + 1) * size]
        limit = job.request.settings.tile_limit_s + 0.5 * len(corners)
        task = (job.request, job.prepared.tiles.side, corners)
        self._workers.submit((job, index), read_batch, *task, limit_s=limit)
        self._reading += 1

    def _collect_read_batches(self) -> None:
        if self._encoding and not self._workers.pending_count:
            wait([self._encoding[0][2]], _POLL_S)  # polling without a pause would slow it down
            return
        outcome = self._workers.next_outcome(_POLL_S)
        if outcome is None:
            return
        job, index = outcome.key
        self._reading -= index is not None
        if job.failure is None and outcome.failure is not None:
            self._fail_job(job, outcome.failure)
        elif job.failure is None and index is None:
            self._queue_batches(job, outcome.value)
        elif job.failure is None:
            self._submit_for_encoding(job, index, outcome.value)

    def _queue_batches(self, job: _SlideJob, prepared: PreparedSlide) -> None:
        job.prepared = prepared
        if self._threads is None or prepared.tiles is None or prepared.has_bag:
            return
        job.unencoded_batches = -(-len(prepared.tiles.coords) // job.request.batch_size)
        job.unread_batches.extend(range(job.unencoded_batches))
        self._on_tiles(0, len(prepared.tiles.coords))

    def _submit_for_encoding(self, job: _SlideJob, index: int, batch: TileBatch) -> None:
        assert self._threads is not None
        job.kept[index] = batch.kept
        self._encoding.append((job, index, self._threads.submit(batch.pixels)))

    def _collect_encoded_batches(self) -> None:
        while self._encoding and self._encoding[0][2].done():
            job, index, future = self._encoding.popleft()
            job.unencoded_batches -= 1
            try:
                job.features[index] = future.result()
            except SacMILError as error:
                self._fail_job(job, str(error))
                continue
            self._on_tiles(len(job.kept[index]), 0)
        for job in self._jobs:
            limit = job.request.settings.slide_limit_s
            if not job.is_finished and job.seconds > limit:
                self._fail_job(job, f"took longer than {limit:g} s")

    def _fail_job(self, job: _SlideJob, reason: str) -> None:
        job.failure = job.failure or reason
        job.unread_batches.clear()

    def _finish_job(self, job: _SlideJob) -> ExtractedSlide:
        bag = None
        if job.failure is None and job.features:
            assert job.prepared is not None
            order = sorted(job.features)
            try:
                bag = assemble_bag(
                    job.request,
                    job.prepared,
                    [job.kept[index] for index in order],
                    [job.features[index] for index in order],
                )
            except SacMILError as error:
                job.failure = str(error)
        return ExtractedSlide(job.request.path, job.prepared, bag, job.failure, job.seconds)
