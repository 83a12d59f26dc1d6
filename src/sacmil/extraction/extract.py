"""From a cohort of slides to a folder of bags, doing only what is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from sacmil.bag import Bag
from sacmil.encoders import Encoder
from sacmil.errors import OptionError, explain_os_error
from sacmil.extraction.encoding import EncoderThreads
from sacmil.extraction.finished_slides import FinishedSlides
from sacmil.extraction.output_folder import OutputFolder
from sacmil.extraction.pipeline import ExtractedSlide, Pipeline
from sacmil.extraction.prepare_slide import EncoderInfo, PreparedSlide, SlideRequest
from sacmil.extraction.settings import ExtractionSettings
from sacmil.extraction.table import ExtractionRow, ExtractionTable
from sacmil.formats import write_bag
from sacmil.locking import exclusive, remove_partial_files
from sacmil.parallel import WorkerPool

STAGES = ("tissue", "tiles", "features")
_MAX_PENDING_WRITES = 3
"""Slides that may wait for the disk; they hold their bags."""


class ExtractionProgress(Protocol):
    """Who is told how far extraction is."""

    def tiles(self, encoded: int, found: int) -> None:
        """So many more tiles have been encoded, and so many more have been found."""

    def slide(self, row: ExtractionRow, left: int) -> None:
        """A slide is over; so many are left."""


@dataclass(frozen=True, kw_only=True)
class ExtractionResources:
    """How much of the machine is used; 0 chooses by cores and device."""

    workers: int = 0
    """Processes that read slides."""
    threads: int = 0
    """Batches each encoder works at side by side."""
    batch_size: int = 0
    """Tiles encoded at once."""

    def __post_init__(self) -> None:
        for name in ("workers", "threads", "batch_size"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name}={getattr(self, name)}; expected 0 (to choose) or more")

    def resolve(self, device: str | None) -> ExtractionResources:
        """With every 0 replaced, for an encoder on a device, or for none."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        cores = cores or 1
        # A GPU waits for readers; on a CPU the encoder itself takes most of the time.
        on_cpu = device in (None, "cpu")
        readers = {"cpu": cores // 4, None: cores}.get(device, cores - 1)
        return ExtractionResources(
            workers=self.workers or max(1, readers),
            threads=self.threads or (cores if on_cpu else 6),
            batch_size=self.batch_size or (32 if on_cpu else 256),
        )


def make_encoder_info(encoder: Encoder) -> EncoderInfo:
    """What of an encoder travels to workers and into provenance."""
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
    """What is to be done in an output folder, a request per slide."""
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


def extract(
    slides: Sequence[Path],
    out: Path,
    *,
    encoders: Sequence[Encoder] = (),
    settings: ExtractionSettings | None = None,
    until: str = "features",
    resources: ExtractionResources | None = None,
    progress: ExtractionProgress | None = None,
) -> list[ExtractionRow]:
    """Make the bags of slides, or their tissue and tiles alone; what is there stays.

    Args:
        slides: files, their stems all different.
        out: a folder; see extraction/output_folder.py for what is put where.
        encoders: one per device; none where ``until`` stops before features.
        settings: how slides become bags.
        until: tissue, tiles or features.
        resources: how much of the machine is used.
        progress: told as slides and tiles are done.
    """
    encoders = encoders if until == "features" else ()
    chosen = (resources or ExtractionResources()).resolve(encoders[0].device if encoders else None)
    facts = make_encoder_info(encoders[0]) if encoders else None
    requests = make_requests(
        slides,
        out,
        settings or ExtractionSettings(),
        encoder=facts.name if facts else None,
        encoder_info=facts,
        needs_tiles=until != "tissue",
        batch_size=chosen.batch_size,
    )
    with (
        exclusive(out),
        open_pipeline(encoders, chosen, progress.tiles if progress else None) as line,
    ):
        remove_partial_files(out)
        record, finished = ExtractionTable(out / "extraction.csv"), FinishedSlides(out)
        rows = _iter_row_makers(requests, line, record, finished)
        try:
            return write_rows(record, rows, len(requests), progress)
        finally:
            finished.write()


def _iter_row_makers(
    requests: Sequence[SlideRequest],
    pipeline: Pipeline,
    table: ExtractionTable,
    finished: FinishedSlides,
) -> Iterator[Callable[[], ExtractionRow]]:
    """What makes the row of each slide, in order; those that are finished are not opened."""
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
    """A pipeline with its processes and threads."""
    with ExitStack() as stack:
        room = encoders[0].allocate_buffer if encoders else None
        workers = stack.enter_context(WorkerPool(resources.workers, allocate=room))
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
    """Rows as they come, made and written to the record by a thread: a disk may take its time."""

    def write(make: Callable[[], ExtractionRow], left: int) -> ExtractionRow:
        row = make()
        table.write(row)
        if progress:
            progress.slide(row, left)
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
    """Write the bag of a slide, if there is one, and say what became of the slide."""
    found, folder = extracted.prepared, request.folder
    bag = folder.bag_path(request.slide_id) if folder else None
    failure = extracted.failure or _try_write_bag(bag, extracted.bag)
    return ExtractionRow(
        slide_id=_to_printable(request.slide_id),
        path=_to_printable(os.path.realpath(request.path)),  # also of a link to itself
        status="done" if failure is None else "failed",
        reason=failure or "",
        tiles=_count_tiles(extracted),
        mpp=_format_mpp(found),
        reader="" if found is None else found.reader,
        cut=folder.cut_folder.name if folder and request.needs_tiles else "",
        encoder=request.encoder.name if request.encoder else "",
        bag=str(bag.relative_to(folder.out)) if folder and bag and failure is None else "",
        seconds=f"{extracted.seconds:.1f}",
        tissue="" if found is None else found.tissue,
    )


def _try_write_bag(path: Path | None, bag: Bag | None) -> str | None:
    """Why a bag that is there could not be written, if it could not."""
    if path is None or bag is None:
        return None
    try:
        write_bag(path, bag)
    except OSError as error:  # a full disk, a folder that may not be written
        return explain_os_error(error, path)
    return None


def _count_tiles(extracted: ExtractedSlide) -> str:
    """Tiles in the bag, or those laid where it was there already or none was wanted."""
    if extracted.bag is not None:
        return str(len(extracted.bag))
    found = extracted.prepared
    return "" if found is None or found.tiles is None else str(len(found.tiles))


def _format_mpp(prepared: PreparedSlide | None) -> str:
    if prepared is None:
        return ""
    return "unknown" if prepared.mpp is None else f"{prepared.mpp:g}"


def _to_printable(text: str) -> str:
    """Text that UTF-8 can hold, of names that need not be."""
    return text.encode(errors="backslashreplace").decode()
