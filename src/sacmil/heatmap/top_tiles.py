"""The tiles that score highest, cut from the slide and set side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sacmil.heatmap.annotations import (
    GAP_PX,
    GRAY,
    SMALL_TEXT_PX,
    TEXT_COLOR,
    TEXT_PX,
    Panel,
    compose_figure,
    draw_text,
)
from sacmil.heatmap.colors import apply_color_scale
from sacmil.heatmap.normalization import Normalization, to_scale_positions
from sacmil.results import InstanceScores
from sacmil.slides.pixels import read_tile
from sacmil.slides.readers import Slide
from sacmil.units import Level0Px, TilePx

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

TILE_PX = 220
"""Side of a tile in the strip, in pixels."""
TILES_PER_ROW = 4
_FRAME_PX = 6
_CAPTION_PX = 46


def find_top_tiles(
    scores: InstanceScores, values: npt.NDArray[np.float64], count: int = 8
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


def draw_top_tiles(
    slide: Slide,
    scores: InstanceScores,
    values: npt.NDArray[np.float64],
    indices: npt.NDArray[np.intp],
    *,
    normalization: Normalization,
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
        indices: which, as top_tiles finds them.
        normalization: the normalisation, for the legend.
        title: the first line.
        note: the next lines.
        name: what the score is, and of which class.
        mpp: microns per level-0 pixel: says how large a tile is.
    """
    from PIL import Image, ImageDraw

    places, _, _ = to_scale_positions(values, normalization)
    across = min(TILES_PER_ROW, len(indices))
    down = -(-len(indices) // across)
    step = TILE_PX + 2 * _FRAME_PX + GAP_PX
    sheet = Image.new(
        "RGB", (across * step - GAP_PX, down * (step + _CAPTION_PX) - GAP_PX), "white"
    )
    draw = ImageDraw.Draw(sheet)
    for number, index in enumerate(indices.tolist()):
        x, y = number % across * step, number // across * (step + _CAPTION_PX)
        _draw_tile(
            sheet, slide, scores, index, (x, y), apply_color_scale(places[index : index + 1])[0]
        )
        below = y + TILE_PX + 2 * _FRAME_PX + 4
        _draw_caption(draw, (x, below), number + 1, float(values[index]), scores, index)
    side = f"{scores.patch_size * mpp:.4g} µm a side · " if mpp else ""
    caption = f"{side}numbers as in the overlay · x, y in level-0 pixels"
    lines = "\n".join(filter(None, [note, f"tiles with the highest {name}"]))
    return compose_figure(title, lines, [Panel(caption, np.asarray(sheet))], None)


def _draw_tile(
    sheet: Image,
    slide: Slide,
    scores: InstanceScores,
    index: int,
    place: tuple[int, int],
    frame: npt.NDArray[np.uint8],
) -> None:
    from PIL import Image, ImageDraw

    x, y = np.rint(scores.coords[index]).astype(int).tolist()
    # a tile of fewer pixels than the strip shows is enlarged, never read finer than it is
    patch = TilePx(max(1, min(TILE_PX, round(scores.patch_size))))
    tile = read_tile(slide, x, y, Level0Px(scores.patch_size), patch, TilePx(TILE_PX), "bicubic")
    left, top = place
    outer = (left, top, left + TILE_PX + 2 * _FRAME_PX - 1, top + TILE_PX + 2 * _FRAME_PX - 1)
    ImageDraw.Draw(sheet).rectangle(outer, fill=tuple(int(part) for part in frame))
    sheet.paste(Image.fromarray(tile), (left + _FRAME_PX, top + _FRAME_PX))


def _draw_caption(
    draw: ImageDraw,
    place: tuple[int, int],
    number: int,
    value: float,
    scores: InstanceScores,
    index: int,
) -> None:
    x, y = place
    left, top = scores.coords[index].tolist()
    draw_text(draw, (x, y), f"{number}:  {value:.4g}", TEXT_PX, TEXT_COLOR)
    draw_text(draw, (x, y + 23), f"{left:,.0f}, {top:,.0f}", SMALL_TEXT_PX, GRAY)
