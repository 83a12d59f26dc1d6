"""Settings of prediction, and callbacks for its progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from sacmil.limits import BAG_LIMIT_S
from sacmil.progress import ProgressCallback, ignore_progress

if TYPE_CHECKING:
    from sacmil.extraction.extract_slides import ExtractionProgress


ExtractionTracker: TypeAlias = "Callable[[int], AbstractContextManager[ExtractionProgress]]"
"""Called with the number of slides; returns a context with the progress of extraction."""


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """Settings of prediction."""

    device: str = "auto"
    """auto, cpu, cuda:0, …: for torch models and the encoder."""
    slides: Path | None = None
    """Folder of the bags' slides, to draw heatmaps on."""
    heatmaps: bool = True
    """Whether to draw heatmaps."""
    report: bool = False
    """Whether to write a page per slide."""
    allow_mismatch: bool = False
    """Only warn about bags that do not meet the models' requirements."""
    slide_mpp: str | None = None
    """Microns per pixel of the slides, or a table of them, if files do not state it."""
    encoder: str | None = None
    """Encoder of slides, such as onnx:FILE; by default that of the models' cards."""
    encoder_weights: Path | None = None
    download: bool = False
    """Whether to download the encoder's weights."""
    limit_s: float = BAG_LIMIT_S
    """Seconds to read one bag."""


@dataclass(frozen=True, kw_only=True)
class WorkflowCallbacks:
    """Callbacks for the progress of a workflow."""

    on_progress: ProgressCallback = ignore_progress
    """Called with (task, done, total)."""
    track_extraction: ExtractionTracker | None = None
    """Called with the number of slides; returns a context with the progress of extraction."""
