"""Extracts the bag of one slide, from Python."""

from __future__ import annotations

from pathlib import Path

from sacmil.bag import Bag
from sacmil.encoders import Encoder, load_encoder
from sacmil.errors import SlideError
from sacmil.extraction.extract_slides import ExtractionResources, make_encoder_info, open_pipeline
from sacmil.extraction.prepare_slide import SlideRequest
from sacmil.extraction.settings import ExtractionSettings
from sacmil.slides.resolution import SlideResolutions
from sacmil.slides.tiling import TileSpec
from sacmil.units import MicronsPerPixel


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
    request = SlideRequest(
        path=Path(path),
        settings=settings
        or ExtractionSettings(
            tiles=TileSpec(mpp=mpp, patch_size=patch_size),
            resolutions=SlideResolutions(everywhere=stated),
        ),
        encoder=make_encoder_info(loaded),
        batch_size=chosen.batch_size,
    )
    with open_pipeline([loaded], chosen) as pipeline:
        (extracted,) = pipeline.run([request])
    if extracted.bag is None:
        raise SlideError(extracted.failure or f"{path}: nothing was extracted")
    return extracted.bag
