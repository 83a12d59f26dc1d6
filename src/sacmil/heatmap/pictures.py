"""Draws a slide's scores over its tissue or as a map on white, and its highest tiles, as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.atomic import atomic_write
from sacmil.cohorts.outlines import Outlines
from sacmil.errors import ConfigError, suggest_names
from sacmil.heatmap.annotations import (
    GAP_PX,
    GRAY,
    SMALL_TEXT_PX,
    TEXT_COLOR,
    TEXT_PX,
    ColorBar,
    Panel,
    PictureText,
    check_can_draw,
    compose_figure,
    draw_scale_bar,
    draw_text,
)
from sacmil.heatmap.canvas import Canvas, Truth, Viewport, make_truth_mask, open_canvas, rasterize
from sacmil.heatmap.colors import (
    COLOR_SCALE,
    Normalization,
    apply_color_scale,
    get_color_scale,
    normalize_scores,
    to_scale_positions,
)
from sacmil.heatmap.score_files import safe_file_name
from sacmil.heatmap.score_words import ScoreWords, describe_effects
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
_MARK_COLOR_ON_RED = TEXT_COLOR
_NUMBER_SIZE_PX = 13
"""Smallest side of a tile, in pixels, that a number fits into."""
_NUMBER_DISTANCE_PX = 10
"""Distance from a tile to its number, in pixels."""
DEFAULT_WORDS = ScoreWords()
"""Of classes."""
TILE_PX = 220
"""Side of a tile in the picture of top tiles, in pixels."""
TILES_PER_ROW = 4
_FRAME_PX = 6
_CAPTION_PX = 46


def draw_heatmap(
    out_dir: str | Path,
    slide_id: str,
    scores: InstanceScores,
    *,
    classes: Sequence[str] | None = None,
    class_name: str | None = None,
    predicted: str | None = None,
    normalization: Normalization | None = None,
    words: ScoreWords = DEFAULT_WORDS,
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
        normalization: of the overlay, rank by default; the map shows raw scores.
        words: what scores are called, and whether they add to a value or take from it. Then colours
            of both pictures are centered on zero.
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
    used = shown.choose_normalization(normalization, words)
    text = shown.make_text(slide_id, note, name, used, words)
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
        "map": draw_map(scores, canvas, _make_map_text(text)),
    }
    if canvas.slide and len(best):
        pictures["tiles"] = draw_top_tiles(canvas.slide, scores, best, text, canvas.mpp)
    return pictures


def _make_map_text(text: PictureText) -> PictureText:
    """Return the text of a map, which shows raw scores unless zero is the middle of its colours."""
    return text if text.normalization == "diverging" else text._replace(normalization="raw")


class ShownScores(NamedTuple):
    """The scores in a picture, and their class."""

    scores: InstanceScores
    class_name: str | None
    """None if one score is used for all classes."""
    is_predicted: bool
    """Whether that class is the predicted one."""
    has_one_name: bool = False
    """Whether there is one class or target only, so that no score needs to be for all."""

    def choose_normalization(
        self, normalization: Normalization | None = None, words: ScoreWords = DEFAULT_WORDS
    ) -> Normalization:
        """Return the given normalisation; the default is rank, or diverging around zero.

        Diverging are scores that add to a value or take from it, which need no other. A score for
        all classes, such as attention, adds to nothing.

        Args:
            normalization: what the user chose, if anything.
            words: say whether scores of a class add to a value or take from it.

        Raises:
            ConfigError: another is given for diverging scores.
        """
        effects = words.find_effects(self.class_name)
        if effects is None:
            return normalization or "rank"
        if normalization not in (None, "diverging"):
            raise ConfigError(
                f"`normalization` is {normalization}; expected none, since zero is white: a tile "
                f"{describe_effects(effects)}"
            )
        return "diverging"

    def make_text(
        self,
        title: str,
        note: str,
        name: str,
        normalization: Normalization,
        words: ScoreWords = DEFAULT_WORDS,
    ) -> PictureText:
        """Return the text on pictures of these scores.

        Args:
            title: of the slide.
            note: below it, such as the prediction.
            name: of the score.
            normalization: from choose_normalization.
            words: of the task.
        """
        is_diverging = normalization == "diverging"
        effects = words.find_effects(self.class_name) if is_diverging else None
        described = self.describe(name, normalization, words)
        return PictureText(title, note, described, normalization, effects)

    def describe(
        self,
        name: str = "score",
        normalization: Normalization = "rank",
        words: ScoreWords = DEFAULT_WORDS,
    ) -> str:
        """Return the names of the score and its class, for legends and captions."""
        effects = words.find_effects(self.class_name)
        if effects and normalization == "diverging":
            return describe_effects(effects)
        if self.class_name is not None:
            is_predicted = self.is_predicted and words.has_classes
            return f"{name} for {self.class_name}{' (predicted)' if is_predicted else ''}"
        if self.scores.class_scores is not None:
            return name
        if words.is_diverging:
            return f"{name}: how much a tile counts, in either direction"
        return name if self.has_one_name else f"{name}, one for all {words.names_title.lower()}"


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
        if class_name not in (None, own_class):
            found = (
                f"has scores of {own_class} only"
                if own_class
                else "scores tiles, not tiles per class"
            )
            raise ConfigError(f"{class_name}: this model {found}; leave the class out")
        shown, name = scores, own_class
    else:
        name = predicted if class_name is None else class_name
        shown = scores if name is None else _select_column(scores, name, classes)
        name = own_class if name is None else name
    is_predicted = name is not None and name == predicted
    return ShownScores(shown, name, is_predicted, has_one_name=len(known) == 1)


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


# --- overlay and map ------------------------------------------------------------------------------


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
    scale = get_color_scale(text.normalization)
    means, covered = rasterize(scores, positions, canvas.viewport)
    line = None
    if canvas.truth is not None:
        line = _find_border(make_truth_mask(canvas.truth, scores, canvas.viewport))
    panels = _make_slide_panel(scores, canvas, line) if show_slide else []
    last = _finish_picture(blend_colors(canvas.pixels, means, covered, scale), line, canvas)
    is_diverging = text.normalization == "diverging"
    if marked is not None:
        color = _MARK_COLOR_ON_RED if is_diverging else _MARK_COLOR
        _mark_tiles(last, scores.coords[marked], scores.patch_size, canvas.viewport, color)
    panels.append(Panel(text.name, np.asarray(last)))
    if canvas.pixels is not None:  # as it looks over this slide's tissue
        tissue = canvas.pixels[covered].mean(axis=0).round().astype(np.uint8)
        scale = _mix_colors(np.broadcast_to(tissue, scale.shape), scale)
    bar = ColorBar(low, high, text.normalization, scale)
    if is_diverging:  # the bar shows raw scores
        largest = float(np.abs(scores.scores).max())
        bar = ColorBar(-largest, largest, "score", scale, is_diverging=True, effects=text.effects)
    return compose_figure(text.title, text.describe_scores(), panels, bar)


def draw_map(scores: InstanceScores, canvas: Canvas, text: PictureText) -> Image:
    """Draw the scores in full colour on white; the arguments are those of draw_overlay."""
    white = canvas._replace(pixels=None, truth=None)
    return draw_overlay(scores, white, text, show_slide=False)


def blend_colors(
    pixels: Pixels | None, positions: Floats, covered: Mask, scale: Pixels = COLOR_SCALE
) -> Pixels:
    """Return the picture, (h, w, 3), of colours over tiles; elsewhere the slide, or white.

    Args:
        pixels: the slide; None draws opaque colours on white.
        positions: (h, w), positions on the colour scale.
        covered: (h, w), whether a pixel has any tile.
        scale: the colours, the lowest value first.
    """
    colored = apply_color_scale(positions, scale)
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
    image: Image,
    coords: npt.NDArray[np.number],
    patch_size: float,
    viewport: Viewport,
    color: tuple[int, int, int],
) -> None:
    """Frame tiles and number them as the picture of top tiles does."""
    from PIL import ImageDraw as drawing

    draw = drawing.Draw(image)
    side = max(patch_size / viewport.downsample, 6)
    corners = viewport.to_pixels(coords)
    for x, y in corners.tolist():
        draw.rectangle((x - 1, y - 1, x + side, y + side), outline=color, width=2)
    middles = corners.reshape(-1, 2) + side / 2
    positions = _place_numbers(middles, side, image.size)
    for middle, position in zip(middles, positions, strict=True):
        if np.abs(position - middle).max() > side / 2 + _NUMBER_DISTANCE_PX:
            draw.line((*middle, *position), fill=color, width=1)
    # after all frames and lines: those of neighbours would cover the numbers
    for number, position in enumerate(positions.tolist(), start=1):
        _draw_number(draw, position, str(number), round(min(max(side, 11), 15)), color)


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


def _draw_number(
    draw: ImageDraw,
    position: tuple[float, float],
    text: str,
    size: int,
    color: tuple[int, int, int],
) -> None:
    x, y = position
    for dx, dy in ((-1, 0), (1, 0), (0, -1), (0, 1)):
        draw_text(draw, (x + dx, y + dy), text, size, _HALO_COLOR, anchor="mm")
    draw_text(draw, (x, y), text, size, color, anchor="mm")


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
    positions = to_scale_positions(values, text.normalization)[0]
    colors = apply_color_scale(positions, get_color_scale(text.normalization))
    is_diverging = text.normalization == "diverging"
    shown = scores.scores if is_diverging else values
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
        score, position = f"{number + 1}:  {shown[index]:.4g}", f"{left:,.0f}, {top:,.0f}"
        draw_text(draw, (x, y + outer + 4), score, TEXT_PX, TEXT_COLOR)
        draw_text(draw, (x, y + outer + 27), position, SMALL_TEXT_PX, GRAY)
    side = f"{scores.patch_size * mpp:.4g} µm a side · " if mpp else ""
    caption = f"{side}numbers as in the overlay · x, y in level-0 pixels"
    meaning = (
        f"tiles with the highest scores: each {text.name}"
        if is_diverging
        else f"tiles with the highest {text.name}"
    )
    lines = "\n".join(filter(None, [text.note, meaning]))
    return compose_figure(text.title, lines, [Panel(caption, np.asarray(sheet))], None)


def _read_tile(slide: Slide, left: float, top: float, side: float) -> Pixels:
    # a tile with fewer pixels than the picture is enlarged, never read finer than it is
    patch = TilePx(max(1, min(TILE_PX, round(side))))
    x, y = int(np.rint(left)), int(np.rint(top))
    return read_tile(slide, x, y, Level0Px(side), patch, TilePx(TILE_PX), "bicubic")
