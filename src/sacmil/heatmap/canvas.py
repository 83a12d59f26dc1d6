"""The background of scores: the region of a slide that has tiles, or white."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from sacmil.cohorts.outlines import Outlines
from sacmil.heatmap.truth import Truth
from sacmil.heatmap.viewport import Viewport, check_slide_matches, fit_viewport, read_viewport
from sacmil.results import InstanceScores
from sacmil.slides.readers import Pixels, Slide, open_slide


class Canvas(NamedTuple):
    """A background that is read once and used for all models and classes."""

    viewport: Viewport
    mpp: float | None
    """Microns per level-0 pixel."""
    slide: Slide | None = None
    pixels: Pixels | None = None
    """The slide in the viewport."""
    truth: Truth | None = None


@contextmanager
def open_canvas(
    scores: InstanceScores,
    slide: str | Path | None = None,
    *,
    mpp: float | None = None,
    slide_size: tuple[int, int] | None = None,
    truth: Truth | None = None,
) -> Iterator[Canvas]:
    """Open the background of all scores with these tile positions.

    Args:
        scores: positions of the tiles.
        slide: its file; None for white.
        mpp: microns per level-0 pixel from the bag; None takes the slide's own value.
        slide_size: width and height of level 0 from the bag; a slide of another size is rejected.
        truth: outlines in level-0 pixels, or (N,) labels.
    """
    extra_points = truth.positive if isinstance(truth, Outlines) else ()
    with ExitStack() as stack:
        opened = None if slide is None else stack.enter_context(open_slide(slide))
        if opened is None:
            view = fit_viewport(scores, slide_size=slide_size, extra_points=extra_points)
            yield Canvas(view, mpp, truth=truth)
            return
        check_slide_matches(scores, opened, slide_size)
        view = fit_viewport(scores, slide_size=opened.size, extra_points=extra_points)
        yield Canvas(view, mpp or opened.mpp, opened, read_viewport(opened, view), truth)
