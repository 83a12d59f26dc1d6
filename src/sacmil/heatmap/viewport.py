"""The region of a slide that a picture shows, and its size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.errors import SlideError
from sacmil.results import InstanceScores
from sacmil.slides.pixels import make_thumbnail
from sacmil.slides.readers import Pixels, Slide

LONGER_SIDE_PX = 1100
"""Length of a picture's longer side, in pixels."""
_MARGIN = 0.03


class Viewport(NamedTuple):
    """A rectangle of the slide and the size of its picture."""

    left: float
    """In level-0 pixels, as is top."""
    top: float
    width: int
    """In pixels of the picture, as is height."""
    height: int
    downsample: float
    """Level-0 pixels per pixel of the picture."""

    def to_pixels(self, points: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Convert points, (…, 2), from level-0 pixels to pixels of the picture."""
        return np.asarray((np.asarray(points, float) - (self.left, self.top)) / self.downsample)


def fit_viewport(
    scores: InstanceScores,
    *,
    slide_size: tuple[int, int] | None = None,
    extra_points: Iterable[npt.NDArray[np.float64]] = (),
    longer_side: int = LONGER_SIDE_PX,
) -> Viewport:
    """Return the viewport of all tiles and a margin; a larger one would show less detail.

    Args:
        scores: positions of the tiles.
        slide_size: width and height of level 0; the margin ends there.
        extra_points: more points, (…, 2), that must be visible.
        longer_side: length of the longer side in pixels.
    """
    points = np.concatenate([scores.coords, scores.coords + scores.patch_size, *extra_points])
    low, high = points.min(axis=0).astype(float), points.max(axis=0).astype(float)
    margin = max(_MARGIN * (high - low).max(), scores.patch_size)
    low, high = low - margin, high + margin
    if slide_size is not None:
        # tiles may extend over the edge of a slide, and must stay visible
        low = np.minimum(np.maximum(low, 0), points.min(axis=0))
        high = np.maximum(np.minimum(high, slide_size), points.max(axis=0))
    downsample = float((high - low).max()) / longer_side
    width, height = (max(1, round(length / downsample)) for length in (high - low).tolist())
    return Viewport(float(low[0]), float(low[1]), width, height, downsample)


def read_viewport(slide: Slide, viewport: Viewport) -> Pixels:
    """Read the slide in a viewport, (height, width, 3); white beyond its edge."""
    from PIL import Image

    small = make_thumbnail(slide, viewport.downsample)
    pixels = small.pixels
    start = np.array([viewport.left, viewport.top]) / small.downsample
    size = np.array([viewport.width, viewport.height]) * viewport.downsample / small.downsample
    # resize() takes fractional pixels, but none outside the picture
    before = np.ceil(np.maximum(-start, 0)).astype(int)
    over = start + size - (pixels.shape[1], pixels.shape[0])
    after = np.ceil(np.maximum(over, 0)).astype(int)
    if before.any() or after.any():
        edges = ((before[1], after[1]), (before[0], after[0]), (0, 0))
        pixels = np.pad(pixels, edges, constant_values=255)
    box = (*(start + before), *(start + before + size))
    image = Image.fromarray(pixels)
    return np.asarray(
        image.resize((viewport.width, viewport.height), Image.Resampling.BICUBIC, box=box)
    )


def check_slide_matches(
    scores: InstanceScores, slide: Slide, slide_size: tuple[int, int] | None
) -> None:
    """Reject a slide that the scores do not belong to."""
    if slide_size is not None and tuple(slide_size) != slide.size:
        raise SlideError(
            f"{slide.path}: is {slide.size[0]:,} x {slide.size[1]:,} pixels, the bag's slide has "
            f"{slide_size[0]:,} x {slide_size[1]:,}; expected the slide the bag was made from"
        )
    reach = (scores.coords + scores.patch_size / 2).max(axis=0)
    if (reach > slide.size).any() or (scores.coords + scores.patch_size / 2 < 0).any():
        raise SlideError(
            f"{slide.path}: tiles lie outside it (up to {reach[0]:,.0f}, {reach[1]:,.0f} of "
            f"{slide.size[0]:,} x {slide.size[1]:,}); expected the slide the bag was made from"
        )
