"""Draws a slide's scores over its tissue, or as a map on white."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sacmil.cohorts.outlines import Outlines
from sacmil.heatmap.annotations import (
    ColorBar,
    Panel,
    compose_figure,
    dilate,
    draw_scale_bar,
    draw_text,
    find_border,
)
from sacmil.heatmap.colors import apply_color_scale, make_color_scale
from sacmil.heatmap.normalization import (
    NORMALIZATION_DESCRIPTIONS,
    Normalization,
    to_scale_positions,
)
from sacmil.heatmap.raster import rasterize
from sacmil.heatmap.truth import Truth, make_truth_mask
from sacmil.heatmap.viewport import Viewport
from sacmil.results import InstanceScores
from sacmil.slides.readers import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

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


def draw_overlay(
    scores: InstanceScores,
    values: npt.NDArray[np.float64],
    pixels: Pixels | None,
    viewport: Viewport,
    *,
    normalization: Normalization,
    title: str = "",
    note: str = "",
    name: str = "score",
    mpp: float | None = None,
    truth: Truth | None = None,
    marked: npt.NDArray[np.intp] | None = None,
    show_slide: bool = True,
) -> Image:
    """Draw the slide, with the truth if it is known, and next to it the scores over the tissue.

    Args:
        scores: positions and scores of the tiles.
        values: (N,), the normalised scores.
        pixels: the slide in the viewport; None draws the scores on white.
        viewport: the region of the slide.
        normalization: the normalisation, for the legend.
        title: the first line, such as the slide's id.
        note: the next lines; the meaning of the normalisation is added.
        name: of the score, for the legend.
        mpp: microns per level-0 pixel, for the scale bar.
        truth: outlines, or labels of the tiles.
        marked: indices of tiles to frame and number.
        show_slide: whether to add the panel with the slide or, without a slide, the truth.
    """
    positions, low, high = to_scale_positions(values, normalization)
    means, covered = rasterize(scores, positions, viewport)
    line = None if truth is None else find_border(make_truth_mask(truth, scores, viewport))
    overlay = blend_colors(pixels, means, covered)
    panels = _make_slide_panel(scores, pixels, viewport, line, truth, mpp) if show_slide else []
    last = _finish_picture(overlay, line, viewport, mpp)
    _mark_tiles(last, scores, viewport, marked)
    panels.append(Panel(name, np.asarray(last)))
    bar = ColorBar(low, high, normalization, _blend_color_scale(pixels, covered))
    return compose_figure(title, _make_note(note, name, normalization), panels, bar)


def draw_map(
    scores: InstanceScores,
    values: npt.NDArray[np.float64],
    viewport: Viewport,
    *,
    normalization: Normalization = "raw",
    title: str = "",
    note: str = "",
    name: str = "score",
    mpp: float | None = None,
) -> Image:
    """Draw the scores in full colour on white; the arguments are those of draw_overlay."""
    positions, low, high = to_scale_positions(values, normalization)
    pixels = blend_colors(None, *rasterize(scores, positions, viewport))
    panel = Panel(name, np.asarray(_finish_picture(pixels, None, viewport, mpp)))
    return compose_figure(
        title, _make_note(note, name, normalization), [panel], ColorBar(low, high, normalization)
    )


def blend_colors(
    pixels: Pixels | None,
    positions: npt.NDArray[np.float64],
    covered: npt.NDArray[np.bool_],
    *,
    opacity: float = OPACITY,
) -> Pixels:
    """Return the picture, (h, w, 3), of colours over tiles; elsewhere the slide, or white.

    Args:
        pixels: the slide; None draws opaque colours on white.
        positions: (h, w), positions on the colour scale.
        covered: (h, w), whether a pixel has any tile.
        opacity: of the colours over tissue.
    """
    colored = apply_color_scale(positions)
    if pixels is None:
        return np.where(covered[..., None], colored, np.uint8(255))
    return np.where(covered[..., None], _mix_colors(pixels, colored, opacity), pixels)


def _mix_colors(pixels: npt.NDArray[np.uint8], colored: Pixels, opacity: float) -> Pixels:
    share = round(opacity * 256)
    gray = (pixels @ _LUMINANCE_WEIGHTS + 128 >> 8)[..., None]
    mixed = gray * np.uint16(256 - share) + colored.astype(np.uint16) * share
    return ((mixed + 128) >> 8).astype(np.uint8)


def _blend_color_scale(pixels: Pixels | None, covered: npt.NDArray[np.bool_]) -> Pixels | None:
    """Return the colour scale as it looks over this slide's tissue."""
    if pixels is None:
        return None
    mean = pixels[covered].mean(axis=0).round().astype(np.uint8)
    return _mix_colors(np.broadcast_to(mean, make_color_scale().shape), make_color_scale(), OPACITY)


def draw_truth(
    scores: InstanceScores, truth: Truth, pixels: Pixels | None, viewport: Viewport
) -> Pixels:
    """Draw the truth, (h, w, 3), as a line over the slide, or over grey tiles on white."""
    background = _draw_gray_tiles(scores, viewport) if pixels is None else pixels
    return _draw_truth_line(background, find_border(make_truth_mask(truth, scores, viewport)))


def _make_slide_panel(
    scores: InstanceScores,
    pixels: Pixels | None,
    viewport: Viewport,
    line: npt.NDArray[np.bool_] | None,
    truth: Truth | None,
    mpp: float | None,
) -> list[Panel]:
    """Return the panel of the slide, or of the truth if there is no slide."""
    if pixels is None and truth is None:
        return []
    if pixels is None:
        pixels = _draw_gray_tiles(scores, viewport)
    caption = "slide"
    if truth is not None and line is not None:
        kind = "outlines" if isinstance(truth, Outlines) else "labelled tiles"
        caption = f"slide · truth: {kind}, {'black line' if line.any() else 'none here'}"
    return [Panel(caption, np.asarray(_finish_picture(pixels, line, viewport, mpp)))]


def _draw_gray_tiles(scores: InstanceScores, viewport: Viewport) -> Pixels:
    _, covered = rasterize(scores, np.zeros(len(scores.coords)), viewport)
    return np.where(covered[..., None], np.uint8(215), np.uint8(255)).repeat(3, axis=2)


def _finish_picture(
    pixels: Pixels, line: npt.NDArray[np.bool_] | None, viewport: Viewport, mpp: float | None
) -> Image:
    from PIL import Image

    framed = _draw_truth_line(pixels, line)
    framed[[0, -1]] = framed[:, [0, -1]] = 200  # a frame, because slides are white at their edge
    image = Image.fromarray(framed)
    draw_scale_bar(image, viewport.downsample, mpp)
    return image


def _draw_truth_line(pixels: Pixels, line: npt.NDArray[np.bool_] | None) -> Pixels:
    copy = pixels.copy()
    if line is not None and line.any():
        copy[dilate(line)] = _HALO_COLOR
        copy[line] = _TRUTH_COLOR
    return copy


def _mark_tiles(
    image: Image, scores: InstanceScores, viewport: Viewport, marked: npt.NDArray[np.intp] | None
) -> None:
    """Frame tiles and number them as the picture of top tiles does."""
    from PIL import ImageDraw as drawing

    draw = drawing.Draw(image)
    side = max(scores.patch_size / viewport.downsample, 6)
    corners = viewport.to_pixels(scores.coords[[] if marked is None else marked]).tolist()
    for x, y in corners:
        draw.rectangle((x - 1, y - 1, x + side, y + side), outline=_MARK_COLOR, width=2)
    middles = np.array(corners).reshape(-1, 2) + side / 2
    positions = _place_numbers(middles, side, image.size)
    for middle, position in zip(middles, positions, strict=True):
        if np.abs(position - middle).max() > side / 2 + _NUMBER_DISTANCE_PX:
            draw.line((*middle, *position), fill=_MARK_COLOR, width=1)
    # after all frames and lines: those of neighbours would cover the numbers
    for number, position in enumerate(positions.tolist(), start=1):
        _draw_number(draw, position, str(number), round(min(max(side, 11), 15)))


def _place_numbers(
    middles: npt.NDArray[np.float64], side: float, size: tuple[int, int]
) -> npt.NDArray[np.float64]:
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


def _draw_number(draw: ImageDraw, position: Sequence[float], text: str, size: int) -> None:
    x, y = position
    for dx, dy in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        draw_text(draw, (x + dx, y + dy), text, size, _HALO_COLOR, anchor="mm")
    draw_text(draw, (x, y), text, size, _MARK_COLOR, anchor="mm")


def _make_note(note: str, name: str, normalization: Normalization) -> str:
    return "\n".join(filter(None, [note, f"{name} · {NORMALIZATION_DESCRIPTIONS[normalization]}"]))
