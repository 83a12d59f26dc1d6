"""Writes the heatmap pictures of one slide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sacmil.atomic import atomic_write
from sacmil.errors import ConfigError, suggest_names
from sacmil.heatmap.annotations import PictureText, check_can_draw
from sacmil.heatmap.canvas import Canvas, open_canvas
from sacmil.heatmap.colors import Normalization, normalize_scores
from sacmil.heatmap.overlay import draw_map, draw_overlay, draw_top_tiles, find_top_tiles
from sacmil.heatmap.score_files import safe_file_name
from sacmil.heatmap.truth import Truth
from sacmil.results import InstanceScores

if TYPE_CHECKING:
    from PIL.Image import Image


def draw_heatmap(
    out_dir: str | Path,
    slide_id: str,
    scores: InstanceScores,
    *,
    classes: Sequence[str] | None = None,
    class_name: str | None = None,
    predicted: str | None = None,
    normalization: Normalization = "rank",
    slide: str | Path | None = None,
    mpp: float | None = None,
    slide_size: tuple[int, int] | None = None,
    truth: Truth | None = None,
    name: str = "score",
    note: str = "",
    top: int = 8,
) -> dict[str, Path]:
    """Write <slide>_overlay.png, <slide>_map.png and, if the slide is given, <slide>_tiles.png.

    With class_name, the class follows the slide's id in the names. A slide's id may be any text:
    characters that are unsafe in a file name are replaced.

    Args:
        out_dir: the folder; pictures of the same name are replaced.
        slide_id: the title.
        scores: of one model.
        classes: names of the columns of class_scores.
        class_name: the class to draw. None draws the predicted class, or ``scores.scores`` if that
            is unknown or the model has no scores by class.
        predicted: the class the model predicts.
        normalization: normalisation of the overlay; the map shows raw scores.
        slide: its file, for the overlay and the top tiles; None draws scores on white.
        mpp: microns per level-0 pixel, for the scale bar.
        slide_size: width and height of level 0 from the bag; a slide of another size is rejected.
        truth: outlines in level-0 pixels, or (N,) labels; drawn in the slide's panel.
        name: of the score, for the legend.
        note: second line of the pictures, such as the model and its prediction.
        top: number of top tiles to draw; 0 for none.

    Returns:
        Paths by kind: overlay, map, tiles.
    """
    check_can_draw()
    shown = select_scores(scores, classes, predicted=predicted, class_name=class_name)
    text = PictureText(slide_id, note, shown.describe(name), normalization)
    with open_canvas(shown.scores, slide, mpp=mpp, slide_size=slide_size, truth=truth) as canvas:
        pictures = draw_pictures(shown.scores, canvas, text, top=top)
    stem = "_".join(map(safe_file_name, filter(None, [slide_id, class_name])))
    return {
        kind: save_picture(Path(out_dir) / f"{stem}_{kind}.png", picture)
        for kind, picture in pictures.items()
    }


def draw_pictures(
    scores: InstanceScores, canvas: Canvas, text: PictureText, *, top: int = 8
) -> dict[str, Image]:
    """Draw overlay, map and, if the canvas has a slide, its top tiles; return them by kind.

    Args:
        scores: of one model, or of one of its classes.
        canvas: the background.
        text: the text on the pictures.
        top: number of top tiles to draw; 0 for none.
    """
    values = normalize_scores(scores.scores, text.normalization)
    best = find_top_tiles(scores, values, top if canvas.slide else 0)
    pictures = {
        "overlay": draw_overlay(scores, canvas, text, marked=best),
        "map": draw_map(scores, canvas, text._replace(normalization="raw")),
    }
    if canvas.slide and len(best):
        pictures["tiles"] = draw_top_tiles(canvas.slide, scores, best, text, canvas.mpp)
    return pictures


class ShownScores(NamedTuple):
    """The scores in a picture, and their class."""

    scores: InstanceScores
    class_name: str | None
    """None if one score is used for all classes."""
    is_predicted: bool
    """Whether that class is the predicted one."""

    def describe(self, name: str = "score") -> str:
        """Return the names of the score and its class, for legends and captions."""
        if self.class_name is None:
            return name if self.scores.class_scores is not None else f"{name}, one for all classes"
        return f"{name} for {self.class_name}{' (predicted)' if self.is_predicted else ''}"


def select_scores(
    scores: InstanceScores,
    classes: Sequence[str] | None,
    *,
    predicted: str | None,
    class_name: str | None = None,
) -> ShownScores:
    """Return the scores of the given class, otherwise of the predicted class.

    Args:
        scores: of one model.
        classes: names of the columns of class_scores.
        predicted: the class the model predicts; None if it is unknown.
        class_name: a class to show instead.

    Raises:
        ConfigError: if there are no scores of that class.
    """
    number, known = scores.score_class, classes or ()
    own_class = known[number] if number is not None and number < len(known) else None
    if scores.class_scores is None:
        if class_name is not None and own_class is None:
            problem = "this model scores tiles, not tiles per class"
            raise ConfigError(f"{class_name}: {problem}; leave the class out")
        if class_name not in (None, own_class):
            problem = f"this model has scores of {own_class} only"
            raise ConfigError(f"{class_name}: {problem}; leave the class out")
        shown, name = scores, own_class
    else:
        name = predicted if class_name is None else class_name
        shown = scores if name is None else _select_column(scores, name, classes)
        name = own_class if name is None else name
    return ShownScores(shown, name, is_predicted=name is not None and name == predicted)


def _select_column(
    scores: InstanceScores, class_name: str, classes: Sequence[str] | None
) -> InstanceScores:
    """Return the scores of a class; reject a class without scores."""
    by_class = np.asarray(scores.class_scores)
    columns = by_class.shape[1]
    names = list(classes or map(str, range(columns)))
    if columns != len(names) or class_name not in names:
        known = suggest_names(class_name, names[:columns])
        raise ConfigError(f"there are no scores of a class {class_name!r}; {known}")
    return replace(scores, scores=by_class[:, names.index(class_name)])


def save_picture(path: Path, image: Image) -> Path:
    """Write a picture as PNG, completely or not at all."""
    with atomic_write(path) as partial:
        image.save(partial, format="PNG", compress_level=1)  # half the time of 6, a fifth larger
    return path
