"""What scores are drawn on: the part of a slide that has tiles, or white."""

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
    """Read once, drawn on as often as there are models and classes."""

    viewport: Viewport
    mpp: float | None
    """Microns per level-0 pixel."""
    slide: Slide | None = None
    pixels: Pixels | None = None
    """The slide as the view shows it."""
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
    """The ground of all scores that lie where these do, while the slide is open.

    Args:
        scores: where the tiles are.
        slide: its file; None for white.
        mpp: microns per level-0 pixel by the bag; else the slide's own count.
        slide_size: width and height of level 0 by the bag; another slide is refused.
        truth: outlines in level-0 pixels, or (N,) labels.
    """
    others = truth.positive if isinstance(truth, Outlines) else ()
    with ExitStack() as stack:
        opened = None if slide is None else stack.enter_context(open_slide(slide))
        if opened is None:
            yield Canvas(
                fit_viewport(scores, slide_size=slide_size, extra_points=others), mpp, truth=truth
            )
            return
        check_slide_matches(scores, opened, slide_size)
        view = fit_viewport(scores, slide_size=opened.size, extra_points=others)
        yield Canvas(view, mpp or opened.mpp, opened, read_viewport(opened, view), truth)
