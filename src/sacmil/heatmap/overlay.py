"""Draws a slide's scores over its tissue or as a map on white, and its highest tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sacmil.cohorts.outlines import Outlines
from sacmil.heatmap.annotations import (
    GAP_PX,
    GRAY,
    SMALL_TEXT_PX,
    TEXT_COLOR,
    TEXT_PX,
    ColorBar,
    Panel,
    PictureText,
    compose_figure,
    draw_scale_bar,
    draw_text,
)
from sacmil.heatmap.canvas import Canvas, Viewport, make_truth_mask, rasterize
from sacmil.heatmap.colors import (
    COLOR_SCALE,
    apply_color_scale,
    normalize_scores,
    to_scale_positions,
)
from sacmil.heatmap.truth import Truth
from sacmil.results import InstanceScores
from sacmil.slides.pixels import read_tile
from sacmil.slides.readers import Pixels, Slide
from sacmil.units import Level0Px, TilePx

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

OPACITY = 0.5
"""Of colours over tissue: half, so that nuclei stay visible. The tissue is drawn in grey, so that
every hue shows a score; its own colours are in the other panel."""
_LUMINANCE_WEIGHTS = np.array([54, 183, 19], np.uint16)  # luminance, in 256ths
_TRUTH_COLOR = (0, 0, 0)
_HALO_COLOR = (255, 255, 255)
_MARK_COLOR = (190, 0, 60)
_NUMBER_SIZE_PX = 13
"""Smallest side of a tile, in pixels, that a number fits into."""
_NUMBER_DISTANCE_PX = 10
"""Distance from a tile to its number, in pixels."""
TILE_PX = 220
"""Side of a tile in the picture of top tiles, in pixels."""
TILES_PER_ROW = 4
_FRAME_PX = 6
_CAPTION_PX = 46


def draw_overlay(
    scores: InstanceScores,
    canvas: Canvas,
    text: PictureText,
    *,
    marked: npt.NDArray[np.intp] | None = None,
    show_slide: bool = True,
) -> Image:
    """Draw the slide, with the truth if it is known, and next to it the scores over the tissue.

    Args:
        scores: positions and scores of the tiles.
        canvas: the background; without a slide, scores are drawn on white.
        text: the text on the picture, and the normalisation.
        marked: indices of tiles to frame and number.
        show_slide: whether to add the panel with the slide or, without a slide, the truth.
    """
    values = normalize_scores(scores.scores, text.normalization)
    positions, low, high = to_scale_positions(values, text.normalization)
    means, covered = rasterize(scores, positions, canvas.viewport)
    line = None
    if canvas.truth is not None:
        line = _find_border(make_truth_mask(canvas.truth, scores, canvas.viewport))
    panels = _make_slide_panel(scores, canvas, line) if show_slide else []
    last = _finish_picture(blend_colors(canvas.pixels, means, covered), line, canvas)
    if marked is not None:
        _mark_tiles(last, scores.coords[marked], scores.patch_size, canvas.viewport)
    panels.append(Panel(text.name, np.asarray(last)))
    scale = COLOR_SCALE
    if canvas.pixels is not None:  # as it looks over this slide's tissue
        tissue = canvas.pixels[covered].mean(axis=0).round().astype(np.uint8)
        scale = _mix_colors(np.broadcast_to(tissue, scale.shape), scale)
    bar = ColorBar(low, high, text.normalization, scale)
    return compose_figure(text.title, text.describe_scores(), panels, bar)


def draw_map(scores: InstanceScores, canvas: Canvas, text: PictureText) -> Image:
    """Draw the scores in full colour on white; the arguments are those of draw_overlay."""
    white = canvas._replace(pixels=None, truth=None)
    return draw_overlay(scores, white, text, show_slide=False)


def blend_colors(pixels: Pixels | None, positions: Floats, covered: Mask) -> Pixels:
    """Return the picture, (h, w, 3), of colours over tiles; elsewhere the slide, or white.

    Args:
        pixels: the slide; None draws opaque colours on white.
        positions: (h, w), positions on the colour scale.
        covered: (h, w), whether a pixel has any tile.
    """
    colored = apply_color_scale(positions)
    if pixels is None:
        return np.where(covered[..., None], colored, np.uint8(255))
    return np.where(covered[..., None], _mix_colors(pixels, colored), pixels)


def _mix_colors(pixels: Pixels, colored: Pixels) -> Pixels:
    share = round(OPACITY * 256)
    gray = (pixels @ _LUMINANCE_WEIGHTS + 128 >> 8)[..., None]
    mixed = gray * np.uint16(256 - share) + colored.astype(np.uint16) * share
    return ((mixed + 128) >> 8).astype(np.uint8)


def draw_truth(
    scores: InstanceScores, truth: Truth, pixels: Pixels | None, viewport: Viewport
) -> Pixels:
    """Draw the truth, (h, w, 3), as a line over the slide, or over grey tiles on white."""
    background = _draw_gray_tiles(scores, viewport) if pixels is None else pixels
    return _draw_truth_line(background, _find_border(make_truth_mask(truth, scores, viewport)))


def _make_slide_panel(scores: InstanceScores, canvas: Canvas, line: Mask | None) -> list[Panel]:
    """Return the panel of the slide, or of the truth if there is no slide."""
    pixels, truth = canvas.pixels, canvas.truth
    if pixels is None and truth is None:
        return []
    if pixels is None:
        pixels = _draw_gray_tiles(scores, canvas.viewport)
    caption = "slide"
    if truth is not None and line is not None:
        kind = "outlines" if isinstance(truth, Outlines) else "labelled tiles"
        caption = f"slide · truth: {kind}, {'black line' if line.any() else 'none here'}"
    return [Panel(caption, np.asarray(_finish_picture(pixels, line, canvas)))]


def _draw_gray_tiles(scores: InstanceScores, viewport: Viewport) -> Pixels:
    _, covered = rasterize(scores, np.zeros(len(scores.coords)), viewport)
    return np.where(covered[..., None], np.uint8(215), np.uint8(255)).repeat(3, axis=2)


def _finish_picture(pixels: Pixels, line: Mask | None, canvas: Canvas) -> Image:
    from PIL import Image

    framed = _draw_truth_line(pixels, line)
    framed[[0, -1]] = framed[:, [0, -1]] = 200  # a frame, because slides are white at their edge
    image = Image.fromarray(framed)
    draw_scale_bar(image, canvas.viewport.downsample, canvas.mpp)
    return image


def _draw_truth_line(pixels: Pixels, line: Mask | None) -> Pixels:
    from scipy.ndimage import binary_dilation

    copy = pixels.copy()
    if line is not None and line.any():
        copy[binary_dilation(line)] = _HALO_COLOR
        copy[line] = _TRUTH_COLOR
    return copy


def _find_border(mask: Mask) -> Mask:
    """Return two pixels along the inside of a mask, but not those along the picture's edge."""
    from scipy.ndimage import binary_erosion

    border: Mask = mask & ~binary_erosion(mask, iterations=2, border_value=1)
    return border


# --- marks ---------------------------------------------------------------------------------------


def _mark_tiles(
    image: Image, coords: npt.NDArray[np.number], patch_size: float, viewport: Viewport
) -> None:
    """Frame tiles and number them as the picture of top tiles does."""
    from PIL import ImageDraw as drawing

    draw = drawing.Draw(image)
    side = max(patch_size / viewport.downsample, 6)
    corners = viewport.to_pixels(coords)
    for x, y in corners.tolist():
        draw.rectangle((x - 1, y - 1, x + side, y + side), outline=_MARK_COLOR, width=2)
    middles = corners.reshape(-1, 2) + side / 2
    positions = _place_numbers(middles, side, image.size)
    for middle, position in zip(middles, positions, strict=True):
        if np.abs(position - middle).max() > side / 2 + _NUMBER_DISTANCE_PX:
            draw.line((*middle, *position), fill=_MARK_COLOR, width=1)
    # after all frames and lines: those of neighbours would cover the numbers
    for number, position in enumerate(positions.tolist(), start=1):
        _draw_number(draw, position, str(number), round(min(max(side, 11), 15)))


def _place_numbers(middles: Floats, side: float, size: tuple[int, int]) -> Floats:
    """Return positions, (M, 2): inside large tiles, otherwise as near as there is room."""
    if side >= _NUMBER_SIZE_PX:
        return middles
    directions = np.array([(1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1)])
    distances = [side / 2 + _NUMBER_DISTANCE_PX * ring for ring in range(1, 9)]
    steps = np.concatenate([directions * distance for distance in distances])
    taken = middles
    for middle in middles:
        options = middle + steps
        inside = ((options > 8) & (options < np.subtract(size, 8))).all(axis=1)
        room = np.abs(options[:, None] - taken).max(axis=2).min(axis=1).clip(max=_NUMBER_SIZE_PX)
        best = np.argmax(np.where(inside, room, -1))  # the first of equal ones is nearest
        taken = np.concatenate([taken, options[[best]]])
    return taken[len(middles) :]


def _draw_number(draw: ImageDraw, position: tuple[float, float], text: str, size: int) -> None:
    x, y = position
    for dx, dy in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        draw_text(draw, (x + dx, y + dy), text, size, _HALO_COLOR, anchor="mm")
    draw_text(draw, (x, y), text, size, _MARK_COLOR, anchor="mm")


# --- top tiles -----------------------------------------------------------------------------------


def find_top_tiles(scores: InstanceScores, values: Floats, count: int = 8) -> npt.NDArray[np.intp]:
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
    indices: npt.NDArray[np.intp],
    text: PictureText,
    mpp: float | None = None,
) -> Image:
    """Draw the given tiles, numbered, in frames of their colours, with score and position below.

    Args:
        slide: the slide that the tiles are read from.
        scores: positions and scores of the tiles.
        indices: the tiles, as from find_top_tiles.
        text: the text on the picture, and the normalisation.
        mpp: microns per level-0 pixel, for the size of a tile.
    """
    from PIL import Image, ImageDraw

    values = normalize_scores(scores.scores, text.normalization)
    colors = apply_color_scale(to_scale_positions(values, text.normalization)[0])
    outer = TILE_PX + 2 * _FRAME_PX
    across = min(TILES_PER_ROW, len(indices))
    wide, high = outer + GAP_PX, outer + GAP_PX + _CAPTION_PX
    size = across * wide - GAP_PX, -(-len(indices) // across) * high - GAP_PX
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for number, index in enumerate(indices.tolist()):
        x, y = number % across * wide, number // across * high
        fill = tuple(colors[index].tolist())
        draw.rectangle((x, y, x + outer - 1, y + outer - 1), fill=fill)
        left, top = scores.coords[index].tolist()
        tile = _read_tile(slide, left, top, scores.patch_size)
        sheet.paste(Image.fromarray(tile), (x + _FRAME_PX, y + _FRAME_PX))
        score, position = f"{number + 1}:  {values[index]:.4g}", f"{left:,.0f}, {top:,.0f}"
        draw_text(draw, (x, y + outer + 4), score, TEXT_PX, TEXT_COLOR)
        draw_text(draw, (x, y + outer + 27), position, SMALL_TEXT_PX, GRAY)
    side = f"{scores.patch_size * mpp:.4g} µm a side · " if mpp else ""
    caption = f"{side}numbers as in the overlay · x, y in level-0 pixels"
    lines = "\n".join(filter(None, [text.note, f"tiles with the highest {text.name}"]))
    return compose_figure(text.title, lines, [Panel(caption, np.asarray(sheet))], None)


def _read_tile(slide: Slide, left: float, top: float, side: float) -> Pixels:
    # a tile with fewer pixels than the picture is enlarged, never read finer than it is
    patch = TilePx(max(1, min(TILE_PX, round(side))))
    x, y = int(np.rint(left)), int(np.rint(top))
    return read_tile(slide, x, y, Level0Px(side), patch, TilePx(TILE_PX), "bicubic")
