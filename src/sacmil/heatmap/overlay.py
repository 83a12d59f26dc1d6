"""The pictures of a slide's scores: over its tissue, and alone on white."""

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
"""Of colours over tissue: half, so that nuclei still show. Tissue beneath is grey, so that every
hue is a score's; its own colours are in the panel beside."""
_LUMINANCE_WEIGHTS = np.array([54, 183, 19], np.uint16)  # luminance, in 256ths
_TRUTH_COLOR = (0, 0, 0)
_HALO_COLOR = (255, 255, 255)
_MARK_COLOR = (190, 0, 60)
_NUMBER_SIZE_PX = 13
"""Side of a tile in pixels from which on a number fits into it."""
_NUMBER_DISTANCE_PX = 10
"""From a tile to the number beside it, in pixels."""


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
    """The slide, with the truth where it is known, and beside it the scores over the tissue.

    Args:
        scores: where the tiles are.
        values: (N,), what normalise made of the scores.
        pixels: the slide as the view shows it; None: the map alone, on white.
        viewport: what is shown.
        normalization: the normalisation, for the legend.
        title: the first line, such as the slide's id.
        note: the next lines; what the normalisation means is added.
        name: of the score, for the legend.
        mpp: microns per level-0 pixel, for the scale bar.
        truth: outlines, or labels of the tiles.
        marked: indices of tiles to be framed and numbered.
        show_slide: whether the slide, or the truth without it, is shown as well.
    """
    places, low, high = to_scale_positions(values, normalization)
    means, covered = rasterize(scores, places, viewport)
    line = None if truth is None else find_border(make_truth_mask(truth, scores, viewport))
    over = blend_colors(pixels, means, covered)
    panels = _make_slide_panel(scores, pixels, viewport, line, truth, mpp) if show_slide else []
    last = _finish_picture(over, line, viewport, mpp)
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
    """The scores alone, in full colour on white; arguments as those of draw_overlay."""
    places, low, high = to_scale_positions(values, normalization)
    drawn = _finish_picture(
        blend_colors(None, *rasterize(scores, places, viewport)), None, viewport, mpp
    )
    panel = Panel(name, np.asarray(drawn))
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
    """(h, w, 3): colours over the slide where tiles are; the slide, or white, elsewhere.

    Args:
        pixels: the slide; None: colours are opaque, on white.
        positions: (h, w), places on the colour scale.
        covered: (h, w), where there are any.
        opacity: of the colours over tissue.
    """
    coloured = apply_color_scale(positions)
    if pixels is None:
        return np.where(covered[..., None], coloured, np.uint8(255))
    return np.where(covered[..., None], _mix_colors(pixels, coloured, opacity), pixels)


def _mix_colors(pixels: npt.NDArray[np.uint8], colored: Pixels, opacity: float) -> Pixels:
    share = round(opacity * 256)
    grey = (pixels @ _LUMINANCE_WEIGHTS + 128 >> 8)[..., None]
    mixed = grey * np.uint16(256 - share) + colored.astype(np.uint16) * share
    return ((mixed + 128) >> 8).astype(np.uint8)


def _blend_color_scale(pixels: Pixels | None, covered: npt.NDArray[np.bool_]) -> Pixels | None:
    """The colour scale as it looks over this slide's tissue."""
    if pixels is None:
        return None
    mean = pixels[covered].mean(axis=0).round().astype(np.uint8)
    return _mix_colors(np.broadcast_to(mean, make_color_scale().shape), make_color_scale(), OPACITY)


def draw_truth(
    scores: InstanceScores, truth: Truth, pixels: Pixels | None, viewport: Viewport
) -> Pixels:
    """(h, w, 3): the truth as a line over the slide, or over grey tiles on white."""
    under = _draw_gray_tiles(scores, viewport) if pixels is None else pixels
    return _draw_truth_line(under, find_border(make_truth_mask(truth, scores, viewport)))


def _make_slide_panel(
    scores: InstanceScores,
    pixels: Pixels | None,
    viewport: Viewport,
    line: npt.NDArray[np.bool_] | None,
    truth: Truth | None,
    mpp: float | None,
) -> list[Panel]:
    """The slide as it is, or only the truth where there is no slide."""
    if pixels is None and truth is None:
        return []
    if pixels is None:
        pixels = _draw_gray_tiles(scores, viewport)
    caption = "slide"
    if truth is not None and line is not None:
        whose = "outlines" if isinstance(truth, Outlines) else "labelled tiles"
        found = f"truth: {whose}, black line" if line.any() else f"truth: {whose}, none here"
        caption = f"slide · {found}"
    return [Panel(caption, np.asarray(_finish_picture(pixels, line, viewport, mpp)))]


def _draw_gray_tiles(scores: InstanceScores, viewport: Viewport) -> Pixels:
    _, covered = rasterize(scores, np.zeros(len(scores.coords)), viewport)
    return np.where(covered[..., None], np.uint8(215), np.uint8(255)).repeat(3, axis=2)


def _finish_picture(
    pixels: Pixels, line: npt.NDArray[np.bool_] | None, viewport: Viewport, mpp: float | None
) -> Image:
    from PIL import Image

    drawn = _draw_truth_line(pixels, line)
    drawn[[0, -1]] = drawn[:, [0, -1]] = 200  # a frame, for slides are white at their edge
    image = Image.fromarray(drawn)
    draw_scale_bar(image, viewport.downsample, mpp)
    return image


def _draw_truth_line(pixels: Pixels, line: npt.NDArray[np.bool_] | None) -> Pixels:
    drawn = pixels.copy()
    if line is not None and line.any():
        drawn[dilate(line)] = _HALO_COLOR
        drawn[line] = _TRUTH_COLOR
    return drawn


def _mark_tiles(
    image: Image, scores: InstanceScores, viewport: Viewport, marked: npt.NDArray[np.intp] | None
) -> None:
    """Frames with the numbers that the strip of tiles has."""
    from PIL import ImageDraw as drawing

    draw = drawing.Draw(image)
    side = max(scores.patch_size / viewport.downsample, 6)
    corners = viewport.to_pixels(scores.coords[[] if marked is None else marked]).tolist()
    for x, y in corners:
        draw.rectangle((x - 1, y - 1, x + side, y + side), outline=_MARK_COLOR, width=2)
    middles = np.array(corners).reshape(-1, 2) + side / 2
    places = _place_numbers(middles, side, image.size)
    for middle, place in zip(middles, places, strict=True):
        if np.abs(place - middle).max() > side / 2 + _NUMBER_DISTANCE_PX:
            draw.line((*middle, *place), fill=_MARK_COLOR, width=1)
    # after all frames and lines, or those of neighbours would cross them out
    for number, place in enumerate(places.tolist(), start=1):
        _draw_number(draw, place, str(number), round(min(max(side, 11), 15)))


def _place_numbers(
    middles: npt.NDArray[np.float64], side: float, size: tuple[int, int]
) -> npt.NDArray[np.float64]:
    """(M, 2): in the tiles where they are large enough, else as near as there is room."""
    if side >= _NUMBER_SIZE_PX:
        return middles
    ways = np.array([(1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1)])
    steps = np.concatenate([ways * (side / 2 + _NUMBER_DISTANCE_PX * ring) for ring in range(1, 9)])
    taken = middles
    for middle in middles:
        offers = middle + steps
        inside = ((offers > 8) & (offers < np.subtract(size, 8))).all(axis=1)
        room = np.abs(offers[:, None] - taken).max(axis=2).min(axis=1).clip(max=_NUMBER_SIZE_PX)
        best = np.argmax(np.where(inside, room, -1))  # of equal ones the first, which is nearest
        taken = np.concatenate([taken, offers[[best]]])
    return taken[len(middles) :]


def _draw_number(draw: ImageDraw, place: Sequence[float], text: str, size: int) -> None:
    x, y = place
    for dx, dy in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        draw_text(draw, (x + dx, y + dy), text, size, _HALO_COLOR, anchor="mm")
    draw_text(draw, (x, y), text, size, _MARK_COLOR, anchor="mm")


def _make_note(note: str, name: str, normalization: Normalization) -> str:
    return "\n".join(filter(None, [note, f"{name} · {NORMALIZATION_DESCRIPTIONS[normalization]}"]))
