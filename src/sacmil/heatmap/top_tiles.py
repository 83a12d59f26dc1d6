"""Finds the tiles with the highest scores and draws them side by side."""

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
"""Side of a tile in the picture, in pixels."""
TILES_PER_ROW = 4
_FRAME_PX = 6
_CAPTION_PX = 46


def find_top_tiles(
    scores: InstanceScores, values: npt.NDArray[np.float64], count: int = 8
) -> npt.NDArray[np.intp]:
    """Return the indices of the highest values, the highest first; ties in the order of the bag.

    Of overlapping tiles only the highest is taken, or all tiles could show the same position. An
    overlap of a tenth of a side is allowed for rounding.
    """
    taken: list[int] = []
    for index in np.argsort(-values, kind="stable").tolist():
        if len(taken) == count:
            break
        distances = np.abs(scores.coords[taken] - scores.coords[index]).max(axis=1, initial=0)
        if not taken or distances.min() >= 0.9 * scores.patch_size:
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
    """Draw the given tiles, numbered, in frames of their colours, with score and position below.

    Args:
        slide: the slide that the tiles are read from.
        scores: positions and scores of the tiles.
        values: (N,), the normalised scores.
        indices: the tiles, as from find_top_tiles.
        normalization: the normalisation, for the legend.
        title: the first line.
        note: the next lines.
        name: of the score and its class.
        mpp: microns per level-0 pixel, for the size of a tile.
    """
    from PIL import Image, ImageDraw

    positions, _, _ = to_scale_positions(values, normalization)
    across = min(TILES_PER_ROW, len(indices))
    down = -(-len(indices) // across)
    step = TILE_PX + 2 * _FRAME_PX + GAP_PX
    sheet = Image.new(
        "RGB", (across * step - GAP_PX, down * (step + _CAPTION_PX) - GAP_PX), "white"
    )
    draw = ImageDraw.Draw(sheet)
    for number, index in enumerate(indices.tolist()):
        x, y = number % across * step, number // across * (step + _CAPTION_PX)
        color = apply_color_scale(positions[index : index + 1])[0]
        _draw_tile(sheet, slide, scores, index, (x, y), color)
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
    corner: tuple[int, int],
    color: npt.NDArray[np.uint8],
) -> None:
    from PIL import Image, ImageDraw

    x, y = np.rint(scores.coords[index]).astype(int).tolist()
    # a tile with fewer pixels than the picture is enlarged, never read finer than it is
    patch = TilePx(max(1, min(TILE_PX, round(scores.patch_size))))
    tile = read_tile(slide, x, y, Level0Px(scores.patch_size), patch, TilePx(TILE_PX), "bicubic")
    left, top = corner
    outer = (left, top, left + TILE_PX + 2 * _FRAME_PX - 1, top + TILE_PX + 2 * _FRAME_PX - 1)
    ImageDraw.Draw(sheet).rectangle(outer, fill=tuple(int(value) for value in color))
    sheet.paste(Image.fromarray(tile), (left + _FRAME_PX, top + _FRAME_PX))


def _draw_caption(
    draw: ImageDraw,
    corner: tuple[int, int],
    number: int,
    value: float,
    scores: InstanceScores,
    index: int,
) -> None:
    x, y = corner
    left, top = scores.coords[index].tolist()
    draw_text(draw, (x, y), f"{number}:  {value:.4g}", TEXT_PX, TEXT_COLOR)
    draw_text(draw, (x, y + 23), f"{left:,.0f}, {top:,.0f}", SMALL_TEXT_PX, GRAY)
