"""The first half of the demonstration: synthetic slides and their bags."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from sacmil.encoders import load_encoder
from sacmil.errors import RunError
from sacmil.extraction import ExtractionRow, ExtractionSettings, extract_slides
from sacmil.parallel import WorkerPool
from sacmil.synthetic.slides import SyntheticSlide, write_slide
from sacmil.workflows.demo.settings import DemoSettings
from sacmil.workflows.prediction_settings import WorkflowCallbacks

_LIMIT_S = 600.0


def count_cores() -> int:
    """Return the number of cores this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return count or 1


def draw_missing_slides(
    cohort: Sequence[SyntheticSlide], slides: Path, truth: Path, callbacks: WorkflowCallbacks
) -> int:
    """Draw the missing slides in parallel; return how many were drawn.

    Args:
        cohort: the cohort.
        slides: folder of the pyramids.
        truth: folder of the annotations.
        callbacks: progress, per slide.
    """
    missing = [slide for slide in cohort if not (slides / slide.file_name).is_file()]
    if not missing:
        return 0
    callbacks.on_progress("drawing slides", 0, len(missing))
    with WorkerPool(min(count_cores(), len(missing))) as workers:
        for slide in missing:
            workers.submit(slide.slide_id, write_slide, slide, slides, truth, limit_s=_LIMIT_S)
        for done in range(len(missing)):
            outcome = workers.next_outcome()
            if outcome is not None and outcome.failure is not None:
                raise RunError(f"drawing {outcome.key} failed: {outcome.failure}")
            callbacks.on_progress("drawing slides", done + 1, len(missing))
    return len(missing)


class DemoBags(NamedTuple):
    """Bags of the slides, and slides without one."""

    files: dict[str, Path]
    """By slide."""
    failures: dict[str, str]
    """Reason by slide, for slides without a bag."""
    tiles: int
    num_new: int
    """Number of bags made by this run."""


def extract_bags(
    slides: Sequence[Path], out: Path, settings: DemoSettings, callbacks: WorkflowCallbacks
) -> DemoBags:
    """Extract the slides; a slide that fails does not stop the others.

    Args:
        slides: slide files.
        out: folder of the extraction.
        settings: encoder and tiles.
        callbacks: progress, per slide and tile.
    """
    before = {file for file in out.glob("*/features_*/*.h5")}
    encoder = load_encoder(settings.encoder)
    chosen = ExtractionSettings(tiles=settings.tiles)
    tracker = (
        callbacks.track_extraction(len(slides)) if callbacks.track_extraction else nullcontext()
    )
    with tracker as progress:
        rows = extract_slides(slides, out, encoders=[encoder], settings=chosen, progress=progress)
    files = {row.slide_id: out / row.bag for row in rows if row.status == "done"}
    return DemoBags(
        files,
        {row.slide_id: row.reason for row in rows if row.status != "done"},
        sum(_count_tiles(row) for row in rows if row.status == "done"),
        len(set(files.values()) - before),
    )


def _count_tiles(row: ExtractionRow) -> int:
    return int(row.tiles or 0)
