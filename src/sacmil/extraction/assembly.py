"""Assembles the bag of a slide from encoded batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag, EncoderId
from sacmil.errors import NoTissueError
from sacmil.extraction.encoding import Features
from sacmil.extraction.prepare_slide import PreparedSlide, SlideRequest
from sacmil.formats import check_spacing


def assemble_bag(
    request: SlideRequest,
    prepared: PreparedSlide,
    kept: Sequence[npt.NDArray[np.bool_]],
    features: Sequence[Features],
) -> Bag:
    """Return the bag of a slide, made from its batches in order.

    Args:
        request: the slide and its settings.
        prepared: the slide's resolution, tissue and tiles.
        kept: which tiles of each batch were encoded.
        features: (kept, D) of each batch.
    """
    assert request.encoder is not None
    assert prepared.tiles is not None
    is_kept = np.concatenate(kept)
    if not is_kept.any():
        raise NoTissueError(
            f"{request.path}: all {len(is_kept)} tiles were left out as white or blurred; look at "
            "the preview, or extract without `drop_white` and `drop_blurred`"
        )
    bag = Bag(
        slide_id=prepared.slide_id,
        features=np.concatenate(features).astype(request.settings.dtype),
        coords=prepared.tiles.coords[is_kept],
        patch_size=prepared.tiles.side,
        mpp=prepared.mpp,
        slide_size=prepared.size,
        bounds_origin=prepared.bounds_origin,
        stride=prepared.tiles.stride,
        tile_px=prepared.tiles.tile_px,
        encoder=EncoderId(request.encoder.name, request.encoder.hash),
        provenance=request.make_provenance(prepared),
    )
    check_spacing(bag)
    return bag
