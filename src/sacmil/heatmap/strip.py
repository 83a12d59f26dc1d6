"""The tiles that score highest, cut from the slide and set side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sacmil.heatmap.colours import colour
from sacmil.heatmap.furniture import GAP, GREY, INK, SMALL, TEXT, Panel, compose, write
from sacmil.heatmap.normalisation import Normalisation, places_on_scale
from sacmil.results import Scores
from sacmil.slides.pixels import read_tile
from sacmil.slides.readers import Slide
from sacmil.units import Level0Px, TilePx

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

TILE = 220
"""Side of a tile in the strip, in pixels."""
ACROSS = 4
_FRAME = 6
_TEXT = 46


def top_tiles(
    scores: Scores, values: npt.NDArray[np.float64], count: int = 8
) -> npt.NDArray[np.intp]:
    """Indices of the highest values, the highest first; ties in the order of the bag.

    Of tiles that overlap only the highest is taken, or the strip would show one place again and
    again; a tenth of a side is rounding.
    """
    taken: list[int] = []
    for index in np.argsort(-values, kind="stable").tolist():
        if len(taken) == count:
            break
        apart = np.abs(scores.coords[taken] - scores.coords[index]).max(axis=1, initial=0)
        if not taken or apart.min() >= 0.9 * scores.patch_size:
            taken.append(index)
    return np.array(taken, dtype=np.intp)


def draw_strip(
    slide: Slide,
    scores: Scores,
    values: npt.NDArray[np.float64],
    chosen: npt.NDArray[np.intp],
    *,
    how: Normalisation,
    title: str = "",
    note: str = "",
    name: str = "score",
    mpp: float | None = None,
) -> Image:
    """The chosen tiles, numbered, each in a frame of its colour, with score and place below.

    Args:
        slide: where they are cut from.
        scores: where the tiles are.
        values: (N,), what normalise made of the scores.
        chosen: which, as top_tiles finds them.
        how: the normalisation, for the legend.
        title: the first line.
        note: the next lines.
        name: what the score is, and of which class.
        mpp: microns per level-0 pixel: says how large a tile is.
    """
    from PIL import Image, ImageDraw

    places, _, _ = places_on_scale(values, how)
    across = min(ACROSS, len(chosen))
    down = -(-len(chosen) // across)
    step = TILE + 2 * _FRAME + GAP
    sheet = Image.new("RGB", (across * step - GAP, down * (step + _TEXT) - GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for number, index in enumerate(chosen.tolist()):
        x, y = number % across * step, number // across * (step + _TEXT)
        _draw_tile(sheet, slide, scores, index, (x, y), colour(places[index : index + 1])[0])
        below = y + TILE + 2 * _FRAME + 4
        _caption(draw, (x, below), number + 1, float(values[index]), scores, index)
    side = f"{scores.patch_size * mpp:.4g} µm a side · " if mpp else ""
    caption = f"{side}numbers as in the overlay · x, y in level-0 pixels"
    lines = "\n".join(filter(None, [note, f"tiles with the highest {name}"]))
    return compose(title, lines, [Panel(caption, np.asarray(sheet))], None)


def _draw_tile(
    sheet: Image,
    slide: Slide,
    scores: Scores,
    index: int,
    place: tuple[int, int],
    frame: npt.NDArray[np.uint8],
) -> None:
    from PIL import Image, ImageDraw

    x, y = np.rint(scores.coords[index]).astype(int).tolist()
    # a tile of fewer pixels than the strip shows is enlarged, never read finer than it is
    patch = TilePx(max(1, min(TILE, round(scores.patch_size))))
    tile = read_tile(slide, x, y, Level0Px(scores.patch_size), patch, TilePx(TILE), "bicubic")
    left, top = place
    outer = (left, top, left + TILE + 2 * _FRAME - 1, top + TILE + 2 * _FRAME - 1)
    ImageDraw.Draw(sheet).rectangle(outer, fill=tuple(int(part) for part in frame))
    sheet.paste(Image.fromarray(tile), (left + _FRAME, top + _FRAME))


def _caption(
    draw: ImageDraw,
    place: tuple[int, int],
    number: int,
    value: float,
    scores: Scores,
    index: int,
) -> None:
    x, y = place
    left, top = scores.coords[index].tolist()
    write(draw, (x, y), f"{number}:  {value:.4g}", TEXT, INK)
    write(draw, (x, y + 23), f"{left:,.0f}, {top:,.0f}", SMALL, GREY)
