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

from sacmil.alone import alone_in, remove_leftovers
from sacmil.bag import Bag
from sacmil.encoders import TileEncoder
from sacmil.errors import OptionError, explain_os_error
from sacmil.extraction.encoding import EncoderThreads
from sacmil.extraction.finished import FinishedSlides
from sacmil.extraction.folder import Folder
from sacmil.extraction.pipeline import Extracted, Pipeline
from sacmil.extraction.record import Record, Row
from sacmil.extraction.settings import Settings
from sacmil.extraction.survey import EncoderFacts, Request, Survey
from sacmil.formats import write_bag
from sacmil.parallel import Workers

STAGES = ("tissue", "tiles", "features")
_BEHIND = 3
"""Slides that may wait for the disk; they hold their bags."""


class Progress(Protocol):
    """Who is told how far extraction is."""

    def tiles(self, encoded: int, found: int) -> None:
        """So many more tiles have been encoded, and so many more have been found."""

    def slide(self, row: Row, left: int) -> None:
        """A slide is over; so many are left."""


@dataclass(frozen=True, kw_only=True)
class Resources:
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

    def chosen(self, device: str | None) -> Resources:
        """With every 0 replaced, for an encoder on a device, or for none."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        cores = cores or 1
        # A GPU waits for readers; on a CPU the encoder itself takes most of the time.
        on_cpu = device in (None, "cpu")
        readers = {"cpu": cores // 4, None: cores}.get(device, cores - 1)
        return Resources(
            workers=self.workers or max(1, readers),
            threads=self.threads or (cores if on_cpu else 6),
            batch_size=self.batch_size or (32 if on_cpu else 256),
        )


def facts_of(encoder: TileEncoder) -> EncoderFacts:
    """What of an encoder travels to workers and into provenance."""
    return EncoderFacts(
        name=encoder.card.name,
        hash=encoder.hash,
        input_px=encoder.card.input_px,
        resample=encoder.card.resample,
        engine=encoder.engine,
        device=encoder.device.partition(":")[0],
        precision=encoder.precision,
        resizes=encoder.resizes,
        file_sha256=encoder.file_sha256,
    )


def requests_for(
    slides: Sequence[Path],
    out: Path,
    settings: Settings,
    *,
    encoder: str | None,
    facts: EncoderFacts | None,
    tiles_wanted: bool = True,
    batch_size: int = 0,
) -> list[Request]:
    """What is to be done in an output folder, a request per slide."""
    folder = Folder(out, settings.tiles, encoder)
    return [
        Request(
            path=path,
            settings=settings,
            folder=folder,
            encoder=facts,
            tiles_wanted=tiles_wanted,
            batch_size=batch_size,
        )
        for path in slides
    ]


def extract(
    slides: Sequence[Path],
    out: Path,
    *,
    encoders: Sequence[TileEncoder] = (),
    settings: Settings | None = None,
    until: str = "features",
    resources: Resources | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """Make the bags of slides, or their tissue and tiles alone; what is there stays.

    Args:
        slides: files, their stems all different.
        out: a folder; see extraction/folder.py for what is put where.
        encoders: one per device; none where ``until`` stops before features.
        settings: how slides become bags.
        until: tissue, tiles or features.
        resources: how much of the machine is used.
        progress: told as slides and tiles are done.
    """
    encoders = encoders if until == "features" else ()
    chosen = (resources or Resources()).chosen(encoders[0].device if encoders else None)
    facts = facts_of(encoders[0]) if encoders else None
    requests = requests_for(
        slides,
        out,
        settings or Settings(),
        encoder=facts.name if facts else None,
        facts=facts,
        tiles_wanted=until != "tissue",
        batch_size=chosen.batch_size,
    )
    with alone_in(out), pipeline(encoders, chosen, progress.tiles if progress else None) as line:
        remove_leftovers(out)
        record, finished = Record(out / "extraction.csv"), FinishedSlides(out)
        rows = _rows(requests, line, record, finished)
        try:
            return recorded(record, rows, len(requests), progress)
        finally:
            finished.write()


def _rows(
    requests: Sequence[Request], line: Pipeline, record: Record, finished: FinishedSlides
) -> Iterator[Callable[[], Row]]:
    """What makes the row of each slide, in order; those that are finished are not opened."""
    known = [finished.find_row(request, record) for request in requests]
    todo = [request for request, row in zip(requests, known, strict=True) if row is None]
    extracted = line.run(todo)
    for request, row in zip(requests, known, strict=True):
        if row is not None:
            yield partial(replace, row, seconds="0.0")
        else:
            yield partial(_keep_and_remember, request, next(extracted), finished)


def _keep_and_remember(request: Request, extracted: Extracted, finished: FinishedSlides) -> Row:
    row = keep(request, extracted)
    if row.status == "done" and extracted.survey is not None:
        finished.add(request, extracted.survey.sources)
    return row


@contextmanager
def pipeline(
    encoders: Sequence[TileEncoder],
    chosen: Resources,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Pipeline]:
    """A pipeline with its processes and threads."""
    with ExitStack() as stack:
        room = encoders[0].room_for if encoders else None
        workers = stack.enter_context(Workers(chosen.workers, room=room))
        threads = EncoderThreads(encoders, chosen.threads) if encoders else None
        if threads:
            stack.enter_context(threads)
        yield Pipeline(workers, threads, progress=progress)


def recorded(
    record: Record, rows: Iterable[Callable[[], Row]], total: int, progress: Progress | None
) -> list[Row]:
    """Rows as they come, made and written to the record by a thread: a disk may take its time."""

    def write(make: Callable[[], Row], left: int) -> Row:
        row = make()
        record.write(row)
        if progress:
            progress.slide(row, left)
        return row

    try:
        with ThreadPoolExecutor(1, thread_name_prefix="record") as pool:
            done: list[Future[Row]] = []
            for make in rows:
                done.append(pool.submit(write, make, total - len(done) - 1))
                if len(done) > _BEHIND:
                    done[-_BEHIND - 1].result()
            return [row.result() for row in done]
    finally:
        record.finish()


def keep(request: Request, extracted: Extracted) -> Row:
    """Write the bag of a slide, if there is one, and say what became of the slide."""
    found, folder = extracted.survey, request.folder
    bag = folder.bag(request.slide_id) if folder else None
    failure = extracted.failure or _written(bag, extracted.bag)
    return Row(
        slide_id=_printable(request.slide_id),
        path=_printable(os.path.realpath(request.path)),  # also of a link to itself
        status="done" if failure is None else "failed",
        reason=failure or "",
        tiles=_count(extracted),
        mpp=_resolution(found),
        reader="" if found is None else found.reader,
        cut=folder.cut.name if folder and request.tiles_wanted else "",
        encoder=request.encoder.name if request.encoder else "",
        bag=str(bag.relative_to(folder.out)) if folder and bag and failure is None else "",
        seconds=f"{extracted.seconds:.1f}",
        tissue="" if found is None else found.tissue,
    )


def _written(path: Path | None, bag: Bag | None) -> str | None:
    """Why a bag that is there could not be written, if it could not."""
    if path is None or bag is None:
        return None
    try:
        write_bag(path, bag)
    except OSError as error:  # a full disk, a folder that may not be written
        return explain_os_error(error, path)
    return None


def _count(extracted: Extracted) -> str:
    """Tiles in the bag, or those laid where it was there already or none was wanted."""
    if extracted.bag is not None:
        return str(len(extracted.bag))
    found = extracted.survey
    return "" if found is None or found.tiles is None else str(len(found.tiles))


def _resolution(found: Survey | None) -> str:
    if found is None:
        return ""
    return "unknown" if found.mpp is None else f"{found.mpp:g}"


def _printable(text: str) -> str:
    """Text that UTF-8 can hold, of names that need not be."""
    return text.encode(errors="backslashreplace").decode()
