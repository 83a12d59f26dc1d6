"""How slides and bags are answered, and who is told how far that is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.limits import BAG_LIMIT_S

if TYPE_CHECKING:
    from sacmil.extraction.extract import ExtractionProgress

ProgressCallback = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class PredictionSettings:
    """How items are answered."""

    device: str = "auto"
    """auto, cpu, cuda:0, …: of models in torch and of the encoder."""
    slides: Path | None = None
    """Where the slides of bags are, for pictures."""
    heatmaps: bool = True
    """Whether pictures are drawn."""
    report: bool = False
    """Whether each slide gets a page."""
    allow_mismatch: bool = False
    """Answer bags that are not what the models were trained on, with a warning."""
    slide_mpp: str | None = None
    """Microns per pixel of the slides, or a table of them, where files do not say."""
    encoder: str | None = None
    """What makes features of slides, such as onnx:FILE; by default what the models' card names."""
    encoder_weights: Path | None = None
    download: bool = False
    """Let the encoder fetch its weights from the hub."""
    limit_s: float = BAG_LIMIT_S
    """Seconds to read one bag."""


@dataclass(frozen=True, kw_only=True)
class WorkflowCallbacks:
    """Who is told how far it is."""

    on_progress: ProgressCallback = lambda task, done, total: None
    """Called with (task, done, of how many)."""
    track_extraction: Callable[[int], AbstractContextManager[ExtractionProgress]] | None = None
    """Called with the number of slides; gives what is told while they are extracted."""
