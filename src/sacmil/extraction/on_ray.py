"""Extraction on a Ray cluster: an actor per GPU or share of cores holds the encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sacmil.alone import alone_in, remove_leftovers
from sacmil.encoders import encoder_card, load_encoder
from sacmil.extraction.cohort import (
    Progress,
    Resources,
    facts_of,
    keep,
    pipeline,
    recorded,
    requests_for,
)
from sacmil.extraction.pipeline import Extracted
from sacmil.extraction.record import Record, Row
from sacmil.extraction.settings import Settings
from sacmil.extraction.survey import Request
from sacmil.parallel import Outcome
from sacmil.parallel.ray import run_each_on_ray

_READERS_PER_GPU = 8


class SlideExtractor:
    """What an actor holds: an encoder, and the processes that read for it.

    Args:
        encoder: its name.
        options: what load_encoder takes besides.
        resources: the actor's share of the machine.
    """

    def __init__(self, encoder: str, options: Mapping[str, Any], resources: Resources) -> None:
        self._encoder = load_encoder(encoder, **options)
        self._stack = ExitStack()
        self._pipeline = self._stack.enter_context(pipeline([self._encoder], resources))

    def __call__(self, request: Request) -> Row:
        """Extract one slide and write its bag."""
        request = replace(request, encoder=facts_of(self._encoder))
        (extracted,) = self._pipeline.run([request])
        return keep(request, extracted)


def extract_on_ray(
    slides: Sequence[Path],
    out: Path,
    encoder: str,
    options: Mapping[str, Any] | None = None,
    *,
    address: str | None = None,
    gpus: int = 0,
    settings: Settings | None = None,
    resources: Resources | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """As ``extract``, over a cluster whose machines all see the slides and the output folder.

    Args:
        slides: files, their stems all different.
        out: the output folder.
        encoder: its name.
        options: what load_encoder takes besides.
        address: of the cluster; None uses one that runs here, or starts one.
        gpus: above 0, an actor takes one GPU; 0, a share of cores.
        settings: how slides become bags.
        resources: the share of each actor; ``threads`` is how many cores it takes.
        progress: told as slides are done.
    """
    name = encoder_card(encoder).name  # an encoder that does not exist is told at once
    device = "cuda:0" if gpus else "cpu"  # Ray shows an actor only the GPU that is its own
    share = resources or Resources()
    # What an actor may take is what Ray sets aside for it, not what the machine has.
    readers = share.workers or (_READERS_PER_GPU if gpus else 1)
    chosen = replace(share, workers=readers, threads=share.threads or (0 if gpus else 1))
    chosen = chosen.chosen(device)
    cores = readers + 1 if gpus else chosen.threads
    requests = requests_for(
        slides,
        out.resolve(),
        settings or Settings(),
        encoder=name,
        facts=None,
        batch_size=chosen.batch_size,
    )
    made = (encoder, {"device": device} | dict(options or {}), chosen)
    outcomes = run_each_on_ray(
        SlideExtractor, made, requests, cpus=cores, gpus=min(gpus, 1), address=address
    )
    rows = (partial(_row, outcome, requests, name) for outcome in outcomes)
    with alone_in(out):
        remove_leftovers(out)
        return recorded(Record(out / "extraction.csv"), rows, len(requests), progress)


def _row(outcome: Outcome, requests: Sequence[Request], encoder: str) -> Row:
    """The actor's, or that of a slide whose actor could not say what became of it."""
    if outcome.value is not None:
        row: Row = outcome.value
        return row
    request = requests[outcome.key]
    reason = outcome.failure or "its actor was lost"
    failed = Extracted(request.path, None, None, reason, 0.0)
    return replace(keep(request, failed), encoder=encoder)
