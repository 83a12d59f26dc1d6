"""From encoded batches to the bag of a slide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag, Encoder
from sacmil.errors import NoTissueError
from sacmil.extraction.encoding import Features
from sacmil.extraction.survey import Request, Survey
from sacmil.formats import check_spacing


def assemble(
    request: Request,
    found: Survey,
    kept: Sequence[npt.NDArray[np.bool_]],
    features: Sequence[Features],
) -> Bag:
    """The bag of a slide from its batches, in order.

    Args:
        request: what was asked for.
        found: what the survey said.
        kept: of each batch, which tiles were encoded.
        features: of each batch, (kept, D).
    """
    assert request.encoder is not None
    assert found.tiles is not None
    which = np.concatenate(kept)
    if not which.any():
        raise NoTissueError(
            f"{request.path}: all {len(which)} tiles were left out as white or blurred; look at "
            "the preview, or extract without --drop-white and --drop-blurred"
        )
    bag = Bag(
        slide_id=found.slide_id,
        features=np.concatenate(features).astype(request.settings.dtype),
        coords=found.tiles.coords[which],
        patch_size=found.tiles.side,
        mpp=found.mpp,
        slide_size=found.size,
        bounds_origin=found.bounds_origin,
        stride=found.tiles.stride,
        tile_px=found.tiles.tile_px,
        encoder=Encoder(request.encoder.name, request.encoder.hash),
        provenance=request.provenance(found),
    )
    check_spacing(bag)
    return bag
