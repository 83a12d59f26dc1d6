"""Extracts slides by loaded encoders and settings; finished slides are skipped."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from sacmil.atomic import exclusive
from sacmil.bag import Bag
from sacmil.encoders import Encoder, describe_encoder, load_encoder
from sacmil.errors import SlideError, explain_os_error
from sacmil.extraction.pipeline import ExtractedSlide, ExtractionResources, Pipeline, open_pipeline
from sacmil.extraction.slide_request import (
    ExtractionSettings,
    SlideRequest,
    make_encoder_info,
    to_printable,
)
from sacmil.extraction.table import ExtractionRow, ExtractionTable, FinishedSlides
from sacmil.formats import write_bag
from sacmil.parallel import TaskOutcome
from sacmil.parallel.ray import run_each_on_ray
from sacmil.slides.resolution import SlideResolutions
from sacmil.slides.tiling import TileSpec
from sacmil.units import MicronsPerPixel

STAGES = ("tissue", "tiles", "features")
_READERS_PER_GPU = 8
_MAX_PENDING_WRITES = 3
"""Slides that may wait for the disk; each keeps its bag in memory."""


class ExtractionProgress(Protocol):
    """Callbacks that report the progress of extraction."""

    def on_tiles(self, encoded: int, found: int) -> None:
        """Called with the number of tiles newly encoded and newly found."""

    def on_slide(self, row: ExtractionRow, left: int) -> None:
        """Called when a slide is done or has failed, with the number of slides left."""


def extract_slide(
    path: str | Path,
    *,
    encoder: str | Encoder = "lite0",
    mpp: float | None = 0.5,
    patch_size: int = 256,
    slide_mpp: float | None = None,
    settings: ExtractionSettings | None = None,
    resources: ExtractionResources | None = None,
) -> Bag:
    """Return the bag of one slide, the same as ``sacmil extract`` writes.

    Args:
        path: the slide.
        encoder: a name, or an encoder from load_encoder.
        mpp: microns per pixel of the tiles; None counts in pixels of the image.
        patch_size: side of a tile in such pixels.
        slide_mpp: microns per level-0 pixel, if the file states none or a wrong value.
        settings: all settings; if given, mpp, patch_size and slide_mpp are ignored.
        resources: processes, threads and batch size.
    """
    loaded = load_encoder(encoder) if isinstance(encoder, str) else encoder
    chosen = (resources or ExtractionResources()).resolve(loaded.device)
    stated = None if slide_mpp is None else MicronsPerPixel(slide_mpp)
    settings = settings or ExtractionSettings(
        tiles=TileSpec(mpp=mpp, patch_size=patch_size),
        resolutions=SlideResolutions(everywhere=stated),
    )
    info = make_encoder_info(loaded)
    request = SlideRequest(
        path=Path(path), settings=settings, encoder=info, batch_size=chosen.batch_size
    )
    with open_pipeline([loaded], chosen) as pipeline:
        (extracted,) = pipeline.run([request])
    if extracted.bag is None:
        raise SlideError(extracted.failure or f"{path}: nothing was extracted")
    return extracted.bag


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
        out: the output folder; extraction/slide_request.py lists its files.
        encoders: one per device; none where ``until`` stops before features.
        settings: how slides become bags.
        until: tissue, tiles or features.
        resources: processes, threads and batch size.
        progress: callbacks for finished slides and tiles.
    """
    encoders = encoders if until == "features" else ()
    chosen = (resources or ExtractionResources()).resolve(encoders[0].device if encoders else None)
    settings = settings or ExtractionSettings()
    requests = [
        SlideRequest(
            path=path,
            settings=settings,
            out=out,
            encoder=make_encoder_info(encoders[0]) if encoders else None,
            needs_tiles=until != "tissue",
            batch_size=chosen.batch_size,
        )
        for path in slides
    ]
    on_tiles = progress.on_tiles if progress else None
    with exclusive(out), open_pipeline(encoders, chosen, on_tiles) as pipeline:
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
    for row in known:
        if row is not None:
            yield partial(replace, row, seconds="0.0")
        else:
            yield partial(_save_and_remember, next(extracted), finished)


def _save_and_remember(extracted: ExtractedSlide, finished: FinishedSlides) -> ExtractionRow:
    row = save_extracted(extracted)
    if row.status == "done" and extracted.prepared is not None:
        finished.add(extracted.request, extracted.prepared.source_stamps)
    return row


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


def save_extracted(extracted: ExtractedSlide) -> ExtractionRow:
    """Write the bag of a slide, if there is one, and return the slide's row."""
    request, prepared, path = extracted.request, extracted.prepared, extracted.request.bag_path
    failure = extracted.failure or _try_write_bag(path, extracted.bag)
    slide_id, cut, encoder = request.key
    return ExtractionRow(
        slide_id=to_printable(slide_id),
        path=to_printable(os.path.realpath(request.path)),  # also of a link to itself
        status="done" if failure is None else "failed",
        reason=failure or "",
        tiles=_count_tiles(extracted),
        mpp="" if prepared is None else "unknown" if prepared.mpp is None else f"{prepared.mpp:g}",
        reader="" if prepared is None else prepared.reader,
        cut=cut,
        encoder=encoder,
        bag=str(path.relative_to(request.out)) if path and request.out and not failure else "",
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
    tiles = extracted.bag or (extracted.prepared and extracted.prepared.tiles)
    return "" if tiles is None else str(len(tiles))


# On a Ray cluster: one actor per GPU, or per share of cores, holds the encoder ------------------


class SlideExtractor:
    """An actor's encoder, with the processes that read tiles for it.

    Args:
        encoder: its name.
        options: further arguments of load_encoder.
        resources: the actor's share of the machine.
    """

    def __init__(
        self, encoder: str, options: Mapping[str, Any], resources: ExtractionResources
    ) -> None:
        self._encoder = load_encoder(encoder, **options)
        self._stack = ExitStack()
        self._pipeline = self._stack.enter_context(open_pipeline([self._encoder], resources))

    def __call__(self, request: SlideRequest) -> ExtractionRow:
        """Extract one slide and write its bag."""
        request = replace(request, encoder=make_encoder_info(self._encoder))
        (extracted,) = self._pipeline.run([request])
        return save_extracted(extracted)


def extract_on_ray(
    slides: Sequence[Path],
    out: Path,
    encoder: str,
    options: Mapping[str, Any] | None = None,
    *,
    address: str | None = None,
    gpus: int = 0,
    settings: ExtractionSettings | None = None,
    resources: ExtractionResources | None = None,
    progress: ExtractionProgress | None = None,
) -> list[ExtractionRow]:
    """Extract as ``extract_slides`` does, on a cluster.

    All its machines must see the slides and the output folder.

    Args:
        slides: files with unique stems.
        out: the output folder.
        encoder: its name.
        options: further arguments of load_encoder.
        address: of the cluster; None uses one that runs here, or starts one.
        gpus: above 0, each actor takes one GPU; 0, a share of cores.
        settings: how slides become bags.
        resources: the share of each actor; ``threads`` is its number of cores.
        progress: callbacks for finished slides.
    """
    name = describe_encoder(encoder).name  # rejects an unknown encoder at once
    device = "cuda:0" if gpus else "cpu"  # Ray shows an actor only its own GPU
    share = resources or ExtractionResources()
    # An actor may use what Ray reserves for it, not the whole machine.
    readers = share.workers or (_READERS_PER_GPU if gpus else 1)
    chosen = replace(share, workers=readers, threads=share.threads or (0 if gpus else 1))
    chosen = chosen.resolve(device)
    cores = readers + 1 if gpus else chosen.threads
    requests = [
        SlideRequest(
            path=path,
            settings=settings or ExtractionSettings(),
            out=out.resolve(),
            batch_size=chosen.batch_size,
        )
        for path in slides
    ]
    arguments = (encoder, {"device": device} | dict(options or {}), chosen)
    outcomes = run_each_on_ray(
        SlideExtractor, arguments, requests, cpus=cores, gpus=min(gpus, 1), address=address
    )
    rows = (partial(_make_row, outcome, requests[outcome.key], name) for outcome in outcomes)
    with exclusive(out):
        return write_rows(ExtractionTable(out / "extraction.csv"), rows, len(requests), progress)


def _make_row(outcome: TaskOutcome, request: SlideRequest, encoder: str) -> ExtractionRow:
    """Return the actor's row, or a row of failure if the actor returned none."""
    if outcome.value is not None:
        row: ExtractionRow = outcome.value
        return row
    failed = ExtractedSlide(request, failure=outcome.failure or "its actor was lost")
    return replace(save_extracted(failed), encoder=encoder)
