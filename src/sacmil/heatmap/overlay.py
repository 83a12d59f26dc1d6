"""The pictures of a slide's scores: over its tissue, and alone on white."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sacmil.cohorts.outlines import Outlines
from sacmil.heatmap.colours import colour, colour_scale
from sacmil.heatmap.furniture import ColourBar, Panel, border, compose, scale_bar, spread, write
from sacmil.heatmap.normalisation import MEANINGS, Normalisation, places_on_scale
from sacmil.heatmap.raster import raster
from sacmil.heatmap.truth import Truth, truth_mask
from sacmil.heatmap.view import View
from sacmil.results import Scores
from sacmil.slides.readers import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

OPACITY = 0.5
"""Of colours over tissue: half, so that nuclei still show. Tissue beneath is grey, so that every
hue is a score's; its own colours are in the panel beside."""
_GREY = np.array([54, 183, 19], np.uint16)  # luminance, in 256ths
_TRUTH = (0, 0, 0)
_HALO = (255, 255, 255)
_MARK = (190, 0, 60)
_ROOM = 13
"""Side of a tile in pixels from which on a number fits into it."""
_NEAR = 10
"""From a tile to the number beside it, in pixels."""


def draw_overlay(
    scores: Scores,
    values: npt.NDArray[np.float64],
    pixels: Pixels | None,
    view: View,
    *,
    how: Normalisation,
    title: str = "",
    note: str = "",
    name: str = "score",
    mpp: float | None = None,
    truth: Truth | None = None,
    marked: npt.NDArray[np.intp] | None = None,
    beside: bool = True,
) -> Image:
    """The slide, with the truth where it is known, and beside it the scores over the tissue.

    Args:
        scores: where the tiles are.
        values: (N,), what normalise made of the scores.
        pixels: the slide as the view shows it; None: the map alone, on white.
        view: what is shown.
        how: the normalisation, for the legend.
        title: the first line, such as the slide's id.
        note: the next lines; what the normalisation means is added.
        name: of the score, for the legend.
        mpp: microns per level-0 pixel, for the scale bar.
        truth: outlines, or labels of the tiles.
        marked: indices of tiles to be framed and numbered.
        beside: whether the slide, or the truth without it, is shown as well.
    """
    places, low, high = places_on_scale(values, how)
    means, covered = raster(scores, places, view)
    line = None if truth is None else border(truth_mask(truth, scores, view))
    over = blend(pixels, means, covered)
    panels = _first(scores, pixels, view, line, truth, mpp) if beside else []
    last = _finished(over, line, view, mpp)
    _mark(last, scores, view, marked)
    panels.append(Panel(name, np.asarray(last)))
    bar = ColourBar(low, high, how, _scale_over(pixels, covered))
    return compose(title, _note(note, name, how), panels, bar)


def draw_map(
    scores: Scores,
    values: npt.NDArray[np.float64],
    view: View,
    *,
    how: Normalisation = "raw",
    title: str = "",
    note: str = "",
    name: str = "score",
    mpp: float | None = None,
) -> Image:
    """The scores alone, in full colour on white; arguments as those of draw_overlay."""
    places, low, high = places_on_scale(values, how)
    drawn = _finished(blend(None, *raster(scores, places, view)), None, view, mpp)
    panel = Panel(name, np.asarray(drawn))
    return compose(title, _note(note, name, how), [panel], ColourBar(low, high, how))


def blend(
    pixels: Pixels | None,
    places: npt.NDArray[np.float64],
    covered: npt.NDArray[np.bool_],
    *,
    opacity: float = OPACITY,
) -> Pixels:
    """(h, w, 3): colours over the slide where tiles are; the slide, or white, elsewhere.

    Args:
        pixels: the slide; None: colours are opaque, on white.
        places: (h, w), places on the colour scale.
        covered: (h, w), where there are any.
        opacity: of the colours over tissue.
    """
    coloured = colour(places)
    if pixels is None:
        return np.where(covered[..., None], coloured, np.uint8(255))
    return np.where(covered[..., None], _mixed(pixels, coloured, opacity), pixels)


def _mixed(pixels: npt.NDArray[np.uint8], coloured: Pixels, opacity: float) -> Pixels:
    share = round(opacity * 256)
    grey = (pixels @ _GREY + 128 >> 8)[..., None]
    mixed = grey * np.uint16(256 - share) + coloured.astype(np.uint16) * share
    return ((mixed + 128) >> 8).astype(np.uint8)


def _scale_over(pixels: Pixels | None, covered: npt.NDArray[np.bool_]) -> Pixels | None:
    """The colour scale as it looks over this slide's tissue."""
    if pixels is None:
        return None
    mean = pixels[covered].mean(axis=0).round().astype(np.uint8)
    return _mixed(np.broadcast_to(mean, colour_scale().shape), colour_scale(), OPACITY)


def draw_truth(scores: Scores, truth: Truth, pixels: Pixels | None, view: View) -> Pixels:
    """(h, w, 3): the truth as a line over the slide, or over grey tiles on white."""
    under = _grey_tiles(scores, view) if pixels is None else pixels
    return _lined(under, border(truth_mask(truth, scores, view)))


def _first(
    scores: Scores,
    pixels: Pixels | None,
    view: View,
    line: npt.NDArray[np.bool_] | None,
    truth: Truth | None,
    mpp: float | None,
) -> list[Panel]:
    """The slide as it is, or only the truth where there is no slide."""
    if pixels is None and truth is None:
        return []
    if pixels is None:
        pixels = _grey_tiles(scores, view)
    caption = "slide"
    if truth is not None and line is not None:
        whose = "outlines" if isinstance(truth, Outlines) else "labelled tiles"
        found = f"truth: {whose}, black line" if line.any() else f"truth: {whose}, none here"
        caption = f"slide · {found}"
    return [Panel(caption, np.asarray(_finished(pixels, line, view, mpp)))]


def _grey_tiles(scores: Scores, view: View) -> Pixels:
    _, covered = raster(scores, np.zeros(len(scores.coords)), view)
    return np.where(covered[..., None], np.uint8(215), np.uint8(255)).repeat(3, axis=2)


def _finished(
    pixels: Pixels, line: npt.NDArray[np.bool_] | None, view: View, mpp: float | None
) -> Image:
    from PIL import Image

    drawn = _lined(pixels, line)
    drawn[[0, -1]] = drawn[:, [0, -1]] = 200  # a frame, for slides are white at their edge
    image = Image.fromarray(drawn)
    scale_bar(image, view.downsample, mpp)
    return image


def _lined(pixels: Pixels, line: npt.NDArray[np.bool_] | None) -> Pixels:
    drawn = pixels.copy()
    if line is not None and line.any():
        drawn[spread(line)] = _HALO
        drawn[line] = _TRUTH
    return drawn


def _mark(image: Image, scores: Scores, view: View, marked: npt.NDArray[np.intp] | None) -> None:
    """Frames with the numbers that the strip of tiles has."""
    from PIL import ImageDraw as drawing

    draw = drawing.Draw(image)
    side = max(scores.patch_size / view.downsample, 6)
    corners = view.at(scores.coords[[] if marked is None else marked]).tolist()
    for x, y in corners:
        draw.rectangle((x - 1, y - 1, x + side, y + side), outline=_MARK, width=2)
    middles = np.array(corners).reshape(-1, 2) + side / 2
    places = _number_places(middles, side, image.size)
    for middle, place in zip(middles, places, strict=True):
        if np.abs(place - middle).max() > side / 2 + _NEAR:
            draw.line((*middle, *place), fill=_MARK, width=1)
    # after all frames and lines, or those of neighbours would cross them out
    for number, place in enumerate(places.tolist(), start=1):
        _number(draw, place, str(number), round(min(max(side, 11), 15)))


def _number_places(
    middles: npt.NDArray[np.float64], side: float, size: tuple[int, int]
) -> npt.NDArray[np.float64]:
    """(M, 2): in the tiles where they are large enough, else as near as there is room."""
    if side >= _ROOM:
        return middles
    ways = np.array([(1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1)])
    steps = np.concatenate([ways * (side / 2 + _NEAR * ring) for ring in range(1, 9)])
    taken = middles
    for middle in middles:
        offers = middle + steps
        inside = ((offers > 8) & (offers < np.subtract(size, 8))).all(axis=1)
        room = np.abs(offers[:, None] - taken).max(axis=2).min(axis=1).clip(max=_ROOM)
        best = np.argmax(np.where(inside, room, -1))  # of equal ones the first, which is nearest
        taken = np.concatenate([taken, offers[[best]]])
    return taken[len(middles) :]


def _number(draw: ImageDraw, place: Sequence[float], text: str, size: int) -> None:
    x, y = place
    for dx, dy in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        write(draw, (x + dx, y + dy), text, size, _HALO, anchor="mm")
    write(draw, (x, y), text, size, _MARK, anchor="mm")


def _note(note: str, name: str, how: Normalisation) -> str:
    return "\n".join(filter(None, [note, f"{name} · {MEANINGS[how]}"]))
