"""Extracts bags from slides: worker processes read tiles while threads encode them.

A worker first prepares each slide (resolution, tissue, tiles). Workers then read its tiles batch by
batch, and threads encode the batches: one per core, several per GPU so that the GPU never waits.
Slides start in order. The next ones start while the last batches of the previous one are still
being encoded. A batch never mixes tiles of two slides, so a bag does not depend on what else is
extracted.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag, EncoderId
from sacmil.encoders import Encoder
from sacmil.environment import count_cores
from sacmil.errors import EncoderError, NoTissueError, OptionError, SacMILError
from sacmil.extraction.prepare_slide import PreparedSlide, TileBatch, prepare_slide, read_batch
from sacmil.extraction.slide_request import SlideRequest
from sacmil.formats import check_spacing
from sacmil.parallel import WorkerPool
from sacmil.slides.readers import Pixels

Features = npt.NDArray[np.float32]
TilesCallback = Callable[[int, int], None]
"""Called with the number of tiles newly encoded and newly found."""

_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class ExtractionResources:
    """Processes, threads and batch size; 0 chooses by cores and device."""

    workers: int = 0
    """Processes that read slides."""
    threads: int = 0
    """Batches that each encoder encodes in parallel."""
    batch_size: int = 0
    """Tiles encoded at once."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0:
                raise OptionError(f"{name}={value}; expected 0 (to choose) or more")

    def resolve(self, device: str | None) -> ExtractionResources:
        """Return a copy with every 0 replaced for this device; None means no encoder."""
        cores = count_cores()
        # A GPU waits for readers; on a CPU the encoder itself takes most of the time.
        on_cpu = device in (None, "cpu")
        readers = {"cpu": cores // 4, None: cores}.get(device, cores - 1)
        return ExtractionResources(
            workers=self.workers or max(1, readers),
            threads=self.threads or (cores if on_cpu else 6),
            batch_size=self.batch_size or (32 if on_cpu else 256),
        )


class ExtractedSlide(NamedTuple):
    """The bag of a slide, or the reason why there is none."""

    request: SlideRequest
    prepared: PreparedSlide | None = None
    bag: Bag | None = None
    """None after a failure, without an encoder, or if the bag exists already."""
    failure: str | None = None
    seconds: float = 0.0
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
    kept: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """Which tiles were kept, by batch."""
    features: dict[int, Features] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return 0.0 if self.started is None else time.monotonic() - self.started

    @property
    def is_finished(self) -> bool:
        is_encoded = self.prepared is not None and not self.unencoded_batches
        return self.failure is not None or is_encoded

    def fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        self.unread_batches.clear()

    def finish(self) -> ExtractedSlide:
        bag = None
        if self.failure is None and self.features:
            try:
                bag = self._make_bag()
            except SacMILError as error:
                self.failure = str(error)
        return ExtractedSlide(self.request, self.prepared, bag, self.failure, self.seconds)

    def _make_bag(self) -> Bag:
        request, prepared = self.request, self.prepared
        assert request.encoder is not None
        assert prepared is not None
        assert prepared.tiles is not None
        order = sorted(self.features)
        is_kept = np.concatenate([self.kept[index] for index in order])
        if not is_kept.any():
            raise NoTissueError(
                f"{request.path}: all {len(is_kept)} tiles were left out as white or blurred; look "
                "at the preview, or extract without `drop_white` and `drop_blurred`"
            )
        features = np.concatenate([self.features[index] for index in order])
        bag = Bag(
            slide_id=request.slide_id,
            features=features.astype(request.settings.dtype),
            coords=prepared.tiles.coords[is_kept],
            patch_size=prepared.tiles.side,
            mpp=prepared.mpp,
            slide_size=prepared.size,
            bounds_origin=prepared.bounds_origin,
            stride=prepared.tiles.stride,
            tile_px=prepared.tiles.tile_px,
            encoder=EncoderId(request.encoder.name, request.encoder.hash),
            provenance=prepared.make_provenance(request),
        )
        check_spacing(bag)
        return bag


class Pipeline:
    """Extracts slides in order; reading and encoding overlap.

    Args:
        workers: processes that open slides.
        encoders: each with its threads; none stops when tiles are known.
        threads: of all encoders together.
        on_tiles: called with the numbers of tiles encoded and found.
    """

    def __init__(
        self,
        workers: WorkerPool,
        encoders: Sequence[tuple[Encoder, ThreadPoolExecutor]],
        threads: int,
        on_tiles: TilesCallback | None = None,
    ) -> None:
        self._workers, self._has_encoders = workers, bool(encoders)
        self._next_encoder = itertools.cycle(encoders)
        self._on_tiles: TilesCallback = on_tiles or (lambda encoded, found: None)
        self._jobs: deque[_SlideJob] = deque()
        self._encoding: deque[tuple[_SlideJob, int, Future[Features]]] = deque()
        self._reading = 0
        # Every worker may be preparing a slide; tiles are read in the order of slides.
        self._slides_ahead = workers.count + 2
        # Enough pending batches that neither side waits, and no more: they hold pixels.
        self._max_batches = 2 * (workers.count + threads)

    def run(self, requests: Iterable[SlideRequest]) -> Iterator[ExtractedSlide]:
        """Yield the result of each slide, in the order given."""
        waiting = iter(requests)
        while True:
            for request in itertools.islice(waiting, self._slides_ahead - len(self._jobs)):
                self._start_job(request)
            if not self._jobs:
                return
            self._request_batches()
            self._collect_read_batches()
            self._collect_encoded_batches()
            while self._jobs and self._jobs[0].is_finished:
                yield self._jobs.popleft().finish()

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
            job.fail(outcome.failure)
        elif job.failure is None and index is None:
            self._queue_batches(job, outcome.value)
        elif job.failure is None:
            self._start_encoding(job, index, outcome.value)

    def _queue_batches(self, job: _SlideJob, prepared: PreparedSlide) -> None:
        job.prepared = prepared
        if not self._has_encoders or prepared.tiles is None or prepared.has_bag:
            return
        job.unencoded_batches = -(-len(prepared.tiles) // job.request.batch_size)
        job.unread_batches.extend(range(job.unencoded_batches))
        self._on_tiles(0, len(prepared.tiles))

    def _start_encoding(self, job: _SlideJob, index: int, batch: TileBatch) -> None:
        job.kept[index] = batch.kept
        encoder, pool = next(self._next_encoder)
        self._encoding.append((job, index, pool.submit(_encode_batch, encoder, batch.pixels)))

    def _collect_encoded_batches(self) -> None:
        while self._encoding and self._encoding[0][2].done():
            job, index, future = self._encoding.popleft()
            job.unencoded_batches -= 1
            try:
                job.features[index] = future.result()
            except SacMILError as error:
                job.fail(str(error))
                continue
            self._on_tiles(len(job.kept[index]), 0)
        for job in self._jobs:
            limit = job.request.settings.slide_limit_s
            if not job.is_finished and job.seconds > limit:
                job.fail(f"took longer than {limit:g} s")


@contextmanager
def open_pipeline(
    encoders: Sequence[Encoder],
    resources: ExtractionResources,
    on_tiles: TilesCallback | None = None,
) -> Iterator[Pipeline]:
    """Open a pipeline with its processes and threads.

    Args:
        encoders: the same encoder on each device.
        resources: as ``ExtractionResources.resolve`` returns them.
        on_tiles: called with the numbers of tiles encoded and found.
    """
    with ExitStack() as stack:
        allocate = encoders[0].allocate_buffer if encoders else None
        workers = stack.enter_context(WorkerPool(resources.workers, allocate=allocate))
        pools = []
        for encoder in encoders:
            stack.enter_context(encoder.concurrent_mode())
            pool = ThreadPoolExecutor(resources.threads, thread_name_prefix="encode")
            stack.callback(pool.shutdown, cancel_futures=True)
            pools.append((encoder, pool))
        yield Pipeline(workers, pools, resources.threads * len(encoders), on_tiles)


def _encode_batch(encoder: Encoder, tiles: Pixels) -> Features:
    if not len(tiles):
        return np.empty((0, encoder.card.width), np.float32)
    try:
        return encoder.encode(tiles)
    except (SacMILError, KeyboardInterrupt):
        raise
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        raise EncoderError(
            f"{encoder.card.name} failed on a batch of {len(tiles)} tiles "
            f"({type(error).__name__}: {detail}); a smaller `batch_size` needs less memory"
        ) from error
