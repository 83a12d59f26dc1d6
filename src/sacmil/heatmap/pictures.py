"""Everything there is to see of one slide, written as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sacmil.atomic import whole_file
from sacmil.errors import ConfigError, suggestion
from sacmil.heatmap.file_name import file_name
from sacmil.heatmap.furniture import check_can_draw
from sacmil.heatmap.ground import Ground, ground_of
from sacmil.heatmap.normalisation import Normalisation, normalise
from sacmil.heatmap.overlay import draw_map, draw_overlay
from sacmil.heatmap.strip import draw_strip, top_tiles
from sacmil.heatmap.truth import Truth
from sacmil.results import Scores

if TYPE_CHECKING:
    from PIL.Image import Image


def draw_heatmap(
    out_dir: str | Path,
    slide_id: str,
    scores: Scores,
    *,
    classes: Sequence[str] | None = None,
    which: str | None = None,
    predicted: str | None = None,
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
        which: the class to draw; None: the predicted one, or what scores has where that is not
            given or the model has no scores by class.
        predicted: the class the model predicts.
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
    shown = select_scores(scores, classes, predicted=predicted, which=which)
    words = Words(slide_id, note, shown.describe(name), how)
    with ground_of(shown.scores, slide, mpp=mpp, slide_size=slide_size, truth=truth) as ground:
        pictures = draw_all(shown.scores, ground, words, top=top)
    stem = "_".join(map(file_name, filter(None, [slide_id, which])))
    return {
        kind: save_picture(Path(out_dir) / f"{stem}_{kind}.png", picture)
        for kind, picture in pictures.items()
    }


class Words(NamedTuple):
    """What stands on a picture."""

    title: str
    """The first line: the slide's id."""
    note: str
    """The second, such as the model and its answer."""
    name: str
    """What the score is."""
    how: Normalisation = "rank"
    """Of the overlay; a map shows scores as they are."""


def draw_all(scores: Scores, ground: Ground, words: Words, *, top: int = 8) -> dict[str, Image]:
    """Overlay, map and, where the slide is there, its highest tiles, by kind.

    Args:
        scores: of one model, or of one class of it.
        ground: what they are drawn on.
        words: what stands on the pictures.
        top: how many tiles the strip has; 0 for none.
    """
    values = normalise(scores.scores, words.how)
    best = top_tiles(scores, values, top if ground.slide else 0)
    pictures = {
        "overlay": draw_overlay(
            scores,
            values,
            ground.pixels,
            ground.view,
            truth=ground.truth,
            marked=best,
            mpp=ground.mpp,
            **words._asdict(),
        ),
        "map": draw_map(
            scores,
            normalise(scores.scores, "raw"),
            ground.view,
            mpp=ground.mpp,
            **words._replace(how="raw")._asdict(),
        ),
    }
    if ground.slide and len(best):
        pictures["tiles"] = draw_strip(
            ground.slide,
            scores,
            values,
            best,
            how=words.how,
            title=words.title,
            note=words.note,
            name=words.name,
            mpp=ground.mpp,
        )
    return pictures


def draw_alone(scores: Scores, ground: Ground, words: Words) -> Image:
    """The overlay without the slide beside it; arguments as those of draw_all."""
    values = normalise(scores.scores, words.how)
    return draw_overlay(
        scores, values, ground.pixels, ground.view, beside=False, mpp=ground.mpp, **words._asdict()
    )


class ShownScores(NamedTuple):
    """The scores a picture shows, and the class they are about."""

    scores: Scores
    class_name: str | None
    """None where one score serves all classes."""
    is_predicted: bool
    """Whether that class is the predicted one."""

    def describe(self, name: str = "score") -> str:
        """What is shown, for legends and captions: the name of the score and of its class."""
        if self.class_name is None:
            return name if self.scores.class_scores is not None else f"{name}, one for all classes"
        return f"{name} for {self.class_name}{' (predicted)' if self.is_predicted else ''}"


def select_scores(
    scores: Scores,
    classes: Sequence[str] | None,
    *,
    predicted: str | None,
    which: str | None = None,
) -> ShownScores:
    """The scores of the class asked for, otherwise of the predicted class.

    Args:
        scores: of one model.
        classes: names of the columns of class_scores.
        predicted: the class the model predicts; None where it is not known.
        which: a class to show instead.

    Raises:
        ConfigError: there are no scores of that class.
    """
    if which is None and scores.class_scores is not None:
        which = predicted
    only = _name_of_class(scores.score_class, classes) if scores.class_scores is None else None
    if which is not None and only is not None:
        if which != only:
            raise ConfigError(
                f"{which}: this model has scores of {only} alone; leave the class out"
            )
        which = None
    name = _name_of_class(scores.score_class, classes) if which is None else which
    shown = chosen(scores, which, classes)
    return ShownScores(shown, name, is_predicted=name is not None and name == predicted)


def _name_of_class(number: int | None, classes: Sequence[str] | None) -> str | None:
    if number is None or classes is None or number >= len(classes):
        return None
    return classes[number]


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


def save_picture(path: Path, image: Image) -> Path:
    """Write it as PNG, whole or not at all."""
    with whole_file(path) as partial:
        image.save(partial, format="PNG", compress_level=1)  # half the time of 6, a fifth larger
    return path
