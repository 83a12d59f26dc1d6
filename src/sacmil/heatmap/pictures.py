"""Everything there is to see of one slide, written as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sacmil.atomic import whole_file
from sacmil.cohorts.outlines import Outlines
from sacmil.errors import ConfigError, suggestion
from sacmil.heatmap.file_name import file_name
from sacmil.heatmap.furniture import check_can_draw
from sacmil.heatmap.normalisation import Normalisation, normalise
from sacmil.heatmap.overlay import draw_map, draw_overlay
from sacmil.heatmap.strip import draw_strip, top_tiles
from sacmil.heatmap.truth import Truth
from sacmil.heatmap.view import check_is_slide_of, slide_pixels, view_of
from sacmil.results import Scores
from sacmil.slides.readers import open_slide

if TYPE_CHECKING:
    from PIL.Image import Image


def draw_heatmap(
    out_dir: str | Path,
    slide_id: str,
    scores: Scores,
    *,
    classes: Sequence[str] | None = None,
    which: str | None = None,
    how: Normalisation = "rank",
    slide: str | Path | None = None,
    mpp: float | None = None,
    slide_size: tuple[int, int] | None = None,
    truth: Truth | None = None,
    name: str = "score",
    note: str = "",
    top: int = 8,
) -> dict[str, Path]:
    """Write <slide>_overlay.png, <slide>_map.png and, where the slide is there, <slide>_tiles.png.

    Between the slide's id and the rest stands the class, where one is asked for. A slide's id may
    be any text: what is harmful in a file name is replaced.

    Args:
        out_dir: the folder; pictures of the same name are replaced.
        slide_id: the title.
        scores: of one model.
        classes: names of the columns of class_scores.
        which: the class to draw; None: the model's own score.
        how: normalisation of the overlay; the map shows scores as they are.
        slide: its file: overlay on tissue, and a strip of tiles. None: the map alone, on white.
        mpp: microns per level-0 pixel, for the scale bar.
        slide_size: width and height of level 0 by the bag; another slide is refused.
        truth: outlines in level-0 pixels, or (N,) labels; drawn beside.
        name: what the score is, for the legend.
        note: second line of the pictures, such as the model and its answer.
        top: how many tiles the strip has; 0 for none.

    Returns:
        Paths by kind: overlay, map, tiles.
    """
    check_can_draw()
    shown = chosen(scores, which, classes)
    values = normalise(shown.scores, how)
    name = name if which is None else f"{name} for {which}"
    with ExitStack() as stack:
        opened = None if slide is None else stack.enter_context(open_slide(slide))
        if opened is not None:
            check_is_slide_of(shown, opened, slide_size)
            slide_size, mpp = opened.size, mpp or opened.mpp
        others = truth.positive if isinstance(truth, Outlines) else ()
        view = view_of(shown, slide_size=slide_size, others=others)
        pixels = None if opened is None else slide_pixels(opened, view)
        best = top_tiles(shown, values, top)
        pictures: dict[str, Image] = {
            "overlay": draw_overlay(
                shown,
                values,
                pixels,
                view,
                how=how,
                title=slide_id,
                note=note,
                name=name,
                mpp=mpp,
                truth=truth,
                marked=best if opened is not None else None,
            ),
            "map": draw_map(
                shown,
                normalise(shown.scores, "raw"),
                view,
                title=slide_id,
                note=note,
                name=name,
                mpp=mpp,
            ),
        }
        if opened is not None and len(best):
            pictures["tiles"] = draw_strip(
                opened, shown, values, best, how=how, title=slide_id, note=note, mpp=mpp
            )
    stem = "_".join(map(file_name, filter(None, [slide_id, which])))
    return {kind: _save(Path(out_dir) / f"{stem}_{kind}.png", p) for kind, p in pictures.items()}


def chosen(scores: Scores, which: str | None, classes: Sequence[str] | None) -> Scores:
    """The scores with those of a class in their place; refused where there is no such class."""
    if which is None:
        return scores
    if scores.class_scores is None:
        raise ConfigError(
            f"{which}: this model scores tiles, not tiles per class; leave the class out"
        )
    columns = scores.class_scores.shape[1]
    names = list(classes or map(str, range(columns)))
    if columns != len(names) or which not in names:
        told = suggestion(which, names[:columns])
        raise ConfigError(f"there are no scores of a class {which!r}; {told}")
    return replace(scores, scores=np.asarray(scores.class_scores[:, names.index(which)]))


def _save(path: Path, image: Image) -> Path:
    with whole_file(path) as partial:
        image.save(partial, format="PNG", compress_level=1)  # half the time of 6, a fifth larger
    return path
