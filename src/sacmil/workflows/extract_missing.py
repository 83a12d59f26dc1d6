"""Extracts bags of slides as a model needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from sacmil.encoders import Encoder, load_encoder
from sacmil.errors import EncoderError, ModelFolderError, OptionError
from sacmil.extraction import ExtractionSettings, extract_slides
from sacmil.slides.resolution import SlideResolutions
from sacmil.slides.tiling import TileSpec
from sacmil.workflows.input_requirements import InputRequirements
from sacmil.workflows.prediction_settings import PredictionSettings, WorkflowCallbacks


class ExtractedBags(NamedTuple):
    """Bags and failures by slide name."""

    bags: dict[str, Path]
    failures: dict[str, str]
    """Reasons why there is no bag."""


def extract_missing(
    slides: Mapping[str, Path],
    out: Path,
    requirements: InputRequirements,
    settings: PredictionSettings,
    callbacks: WorkflowCallbacks,
) -> ExtractedBags:
    """Extract slides into a folder; skip slides that are done.

    Args:
        slides: files by name.
        out: see extraction/slide_request.py for its contents.
        requirements: bags that the models accept.
        settings: encoder and resolution are used.
        callbacks: progress.
    """
    chosen = _make_extraction_settings(slides, requirements, settings)
    encoders = [_load_required_encoder(requirements, settings)]
    tracker = (
        callbacks.track_extraction(len(slides)) if callbacks.track_extraction else nullcontext()
    )
    with tracker as progress:
        paths = list(slides.values())
        rows = extract_slides(paths, out, encoders=encoders, settings=chosen, progress=progress)
    found = dict(zip(slides, rows, strict=True))
    return ExtractedBags(
        {name: out / row.bag for name, row in found.items() if row.status != "failed"},
        {name: row.reason for name, row in found.items() if row.status == "failed"},
    )


def _make_extraction_settings(
    slides: Mapping[str, Path], requirements: InputRequirements, settings: PredictionSettings
) -> ExtractionSettings:
    missing = requirements.list_missing_for_slides()
    if missing:
        raise _make_missing_error(missing, next(iter(slides.values())))
    slide_mpp = settings.slide_mpp
    if requirements.patch_px is not None and slide_mpp:
        raise OptionError(
            "`slide_mpp`: the model's tiles are counted in pixels, not µm; leave it out"
        )
    size = requirements.patch_px or requirements.tile_px
    assert size is not None
    return ExtractionSettings(
        tiles=TileSpec(mpp=None if requirements.patch_px else requirements.mpp, patch_size=size),
        tissue_mode=requirements.tissue or "auto",
        resolutions=SlideResolutions.parse(slide_mpp) if slide_mpp else SlideResolutions(),
    )


def _make_missing_error(missing: Sequence[str], slide: Path) -> ModelFolderError:
    return ModelFolderError(
        f"the model's card does not name the {' or the '.join(missing)} it was trained with, so "
        f"{slide} cannot be tiled for it; extract it with the encoder, resolution and tile "
        "size of the model's bags, and give the bag"
    )


def _load_required_encoder(
    requirements: InputRequirements, settings: PredictionSettings
) -> Encoder:
    name = settings.encoder or requirements.encoder
    assert name is not None
    try:
        loaded = load_encoder(
            name,
            weights=settings.encoder_weights,
            device=_choose_device(settings.device),
            download=settings.download,
        )
    except EncoderError as error:  # it names an argument that has another name here
        raise EncoderError(str(error).replace("`weights`", "`encoder_weights`")) from error
    wrong = list(requirements.check_encoder(loaded.card.name, loaded.hash))
    if wrong and not settings.allow_mismatch:
        raise EncoderError(
            f"{name}: {wrong[0]}; give the model's encoder by `encoder` or `encoder_weights`, "
            "or use `allow_mismatch=True` to use this one anyway"
        )
    return loaded


def _choose_device(device: str) -> str:
    if device != "auto":
        return device
    try:
        import torch
    except ImportError:  # the encoder may not need it
        return "cpu"
    return "cuda:0" if torch.cuda.is_available() else "cpu"
