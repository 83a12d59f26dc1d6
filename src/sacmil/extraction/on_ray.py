"""Extraction on a Ray cluster: one actor per GPU, or per share of cores, holds the encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sacmil.atomic import exclusive, remove_partial_files
from sacmil.encoders import describe_encoder, load_encoder
from sacmil.extraction.extract_slides import ExtractionProgress, save_extracted, write_rows
from sacmil.extraction.pipeline import ExtractedSlide, ExtractionResources, open_pipeline
from sacmil.extraction.slide_request import ExtractionSettings, SlideRequest, make_encoder_info
from sacmil.extraction.table import ExtractionRow, ExtractionTable
from sacmil.parallel import TaskOutcome
from sacmil.parallel.ray import run_each_on_ray

_READERS_PER_GPU = 8


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
        remove_partial_files(out)
        return write_rows(ExtractionTable(out / "extraction.csv"), rows, len(requests), progress)


def _make_row(outcome: TaskOutcome, request: SlideRequest, encoder: str) -> ExtractionRow:
    """Return the actor's row, or a row of failure if the actor returned none."""
    if outcome.value is not None:
        row: ExtractionRow = outcome.value
        return row
    failed = ExtractedSlide(request, failure=outcome.failure or "its actor was lost")
    return replace(save_extracted(failed), encoder=encoder)
