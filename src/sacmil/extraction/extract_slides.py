"""Extracts slides by loaded encoders and settings; finished slides are skipped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from sacmil.atomic import exclusive, remove_partial_files
from sacmil.bag import Bag
from sacmil.encoders import Encoder
from sacmil.environment import count_cores
from sacmil.errors import OptionError, explain_os_error
from sacmil.extraction.encoding import EncoderThreads
from sacmil.extraction.finished_slides import FinishedSlides
from sacmil.extraction.output_folder import OutputFolder
from sacmil.extraction.pipeline import ExtractedSlide, Pipeline
from sacmil.extraction.prepare_slide import EncoderInfo, PreparedSlide, SlideRequest
from sacmil.extraction.settings import ExtractionSettings
from sacmil.extraction.table import ExtractionRow, ExtractionTable
from sacmil.formats import write_bag
from sacmil.parallel import WorkerPool

STAGES = ("tissue", "tiles", "features")
_MAX_PENDING_WRITES = 3
"""Slides that may wait for the disk; each keeps its bag in memory."""


class ExtractionProgress(Protocol):
    """Callbacks that report the progress of extraction."""

    def on_tiles(self, encoded: int, found: int) -> None:
        """Called with the number of tiles newly encoded and newly found."""

    def on_slide(self, row: ExtractionRow, left: int) -> None:
        """Called when a slide is done or has failed, with the number of slides left."""


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
        for name in ("workers", "threads", "batch_size"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name}={getattr(self, name)}; expected 0 (to choose) or more")

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


def make_encoder_info(encoder: Encoder) -> EncoderInfo:
    """Return the facts of an encoder that workers and provenance need."""
    return EncoderInfo(
        name=encoder.card.name,
        hash=encoder.hash,
        input_px=encoder.card.input_px,
        resample=encoder.card.resample,
        engine=encoder.engine,
        device=encoder.device.partition(":")[0],
        precision=encoder.precision,
        can_resize=encoder.can_resize,
        file_sha256=encoder.file_sha256,
    )


def make_requests(
    slides: Sequence[Path],
    out: Path,
    settings: ExtractionSettings,
    *,
    encoder: str | None,
    encoder_info: EncoderInfo | None,
    needs_tiles: bool = True,
    batch_size: int = 0,
) -> list[SlideRequest]:
    """Return one request per slide for an output folder."""
    folder = OutputFolder(out, settings.tiles, encoder)
    return [
        SlideRequest(
            path=path,
            settings=settings,
            folder=folder,
            encoder=encoder_info,
            needs_tiles=needs_tiles,
            batch_size=batch_size,
        )
        for path in slides
    ]


def extract_slides(
    slides: Sequence[Path],
    out: Path,
    *,
    encoders: Sequence[Encoder] = (),
    settings: ExtractionSettings | None = None,
    until: str = "features",
    resources: ExtractionResources | None = None,
    progress: ExtractionProgress | None = None,
) -> list[ExtractionRow]:
    """Extract bags, or only tissue and tiles; files that are up to date are kept.

    Args:
        slides: files with unique stems.
        out: the output folder; extraction/output_folder.py lists its files.
        encoders: one per device; none where ``until`` stops before features.
        settings: how slides become bags.
        until: tissue, tiles or features.
        resources: processes, threads and batch size.
        progress: callbacks for finished slides and tiles.
    """
    encoders = encoders if until == "features" else ()
    resources = (resources or ExtractionResources()).resolve(
        encoders[0].device if encoders else None
    )
    info = make_encoder_info(encoders[0]) if encoders else None
    requests = make_requests(
        slides,
        out,
        settings or ExtractionSettings(),
        encoder=info.name if info else None,
        encoder_info=info,
        needs_tiles=until != "tissue",
        batch_size=resources.batch_size,
    )
    with (
        exclusive(out),
        open_pipeline(encoders, resources, progress.on_tiles if progress else None) as pipeline,
    ):
        remove_partial_files(out)
        table, finished = ExtractionTable(out / "extraction.csv"), FinishedSlides(out)
        row_makers = _iter_row_makers(requests, pipeline, table, finished)
        try:
            return write_rows(table, row_makers, len(requests), progress)
        finally:
            finished.write()


def _iter_row_makers(
    requests: Sequence[SlideRequest],
    pipeline: Pipeline,
    table: ExtractionTable,
    finished: FinishedSlides,
) -> Iterator[Callable[[], ExtractionRow]]:
    """Yield a function per slide that makes its row, in order; finished slides are not opened."""
    known = [finished.find_row(request, table) for request in requests]
    todo = [request for request, row in zip(requests, known, strict=True) if row is None]
    extracted = pipeline.run(todo)
    for request, row in zip(requests, known, strict=True):
        if row is not None:
            yield partial(replace, row, seconds="0.0")
        else:
            yield partial(_save_and_remember, request, next(extracted), finished)


def _save_and_remember(
    request: SlideRequest, extracted: ExtractedSlide, finished: FinishedSlides
) -> ExtractionRow:
    row = save_extracted(request, extracted)
    if row.status == "done" and extracted.prepared is not None:
        finished.add(request, extracted.prepared.source_stamps)
    return row


@contextmanager
def open_pipeline(
    encoders: Sequence[Encoder],
    resources: ExtractionResources,
    on_tiles: Callable[[int, int], None] | None = None,
) -> Iterator[Pipeline]:
    """Open a pipeline with its processes and threads."""
    with ExitStack() as stack:
        allocate = encoders[0].allocate_buffer if encoders else None
        workers = stack.enter_context(WorkerPool(resources.workers, allocate=allocate))
        threads = EncoderThreads(encoders, resources.threads) if encoders else None
        if threads:
            stack.enter_context(threads)
        yield Pipeline(workers, threads, on_tiles=on_tiles)


def write_rows(
    table: ExtractionTable,
    row_makers: Iterable[Callable[[], ExtractionRow]],
    total: int,
    progress: ExtractionProgress | None,
) -> list[ExtractionRow]:
    """Make and write rows in a thread, so that a slow disk does not stop extraction."""

    def write(make: Callable[[], ExtractionRow], left: int) -> ExtractionRow:
        row = make()
        table.write(row)
        if progress:
            progress.on_slide(row, left)
        return row

    try:
        with ThreadPoolExecutor(1, thread_name_prefix="record") as pool:
            done: list[Future[ExtractionRow]] = []
            for make in row_makers:
                done.append(pool.submit(write, make, total - len(done) - 1))
                if len(done) > _MAX_PENDING_WRITES:
                    done[-_MAX_PENDING_WRITES - 1].result()
            return [row.result() for row in done]
    finally:
        table.finish()


def save_extracted(request: SlideRequest, extracted: ExtractedSlide) -> ExtractionRow:
    """Write the bag of a slide, if there is one, and return the slide's row."""
    prepared, folder = extracted.prepared, request.folder
    bag = folder.bag_path(request.slide_id) if folder else None
    failure = extracted.failure or _try_write_bag(bag, extracted.bag)
    return ExtractionRow(
        slide_id=_to_printable(request.slide_id),
        path=_to_printable(os.path.realpath(request.path)),  # also of a link to itself
        status="done" if failure is None else "failed",
        reason=failure or "",
        tiles=_count_tiles(extracted),
        mpp=_format_mpp(prepared),
        reader="" if prepared is None else prepared.reader,
        cut=folder.cut_folder.name if folder and request.needs_tiles else "",
        encoder=request.encoder.name if request.encoder else "",
        bag=str(bag.relative_to(folder.out)) if folder and bag and failure is None else "",
        seconds=f"{extracted.seconds:.1f}",
        tissue="" if prepared is None else prepared.tissue,
    )


def _try_write_bag(path: Path | None, bag: Bag | None) -> str | None:
    """Write a bag, if there is one; return the reason if that fails."""
    if path is None or bag is None:
        return None
    try:
        write_bag(path, bag)
    except OSError as error:  # a full disk, a folder without write permission
        return explain_os_error(error, path)
    return None


def _count_tiles(extracted: ExtractedSlide) -> str:
    """Return the tiles in the new bag; without one, the tiles of the slide's grid."""
    if extracted.bag is not None:
        return str(len(extracted.bag))
    prepared = extracted.prepared
    return "" if prepared is None or prepared.tiles is None else str(len(prepared.tiles))


def _format_mpp(prepared: PreparedSlide | None) -> str:
    if prepared is None:
        return ""
    return "unknown" if prepared.mpp is None else f"{prepared.mpp:g}"


def _to_printable(text: str) -> str:
    """Escape what UTF-8 cannot hold; file names may contain it."""
    return text.encode(errors="backslashreplace").decode()
