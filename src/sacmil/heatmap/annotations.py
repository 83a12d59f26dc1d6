"""Title, captions, colour bar and scale bar of a figure, drawn with pillow."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sacmil.errors import MissingExtraError
from sacmil.heatmap.colors import COLOR_SCALE, NORMALIZATION_DESCRIPTIONS, Normalization
from sacmil.heatmap.score_words import Effects
from sacmil.slides.readers import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

TITLE_PX, TEXT_PX, SMALL_TEXT_PX = 26, 18, 15
"""Sizes of letters in pixels."""
GAP_PX = 20
TEXT_COLOR, GRAY = (25, 25, 25), (95, 95, 95)
_BAR_WIDTH = 26
_MAX_EFFECT_WIDTH = 220
_TICK_COUNT = 5
_ASCII_FALLBACKS = str.maketrans({"µ": "u", "–": "-", "×": "x", "’": "'", "≥": ">"})


class PictureText(NamedTuple):
    """The text on a picture."""

    title: str
    """The first line: the slide's id."""
    note: str
    """The second line, such as the model and its prediction."""
    name: str
    """The name of the score."""
    normalization: Normalization = "rank"
    """Of the overlay; a map shows raw scores, or diverging ones."""
    effects: Effects | None = None
    """What tiles do whose diverging scores are above zero, and below."""

    def describe_scores(self) -> str:
        """Return the lines below the title: the note and the meaning of the scores."""
        name = f"a tile {self.name}" if self.effects else self.name
        meaning = f"{name} · {NORMALIZATION_DESCRIPTIONS[self.normalization]}"
        return f"{self.note}\n{meaning}" if self.note else meaning


class Panel(NamedTuple):
    """A picture with a caption above it."""

    caption: str
    pixels: Pixels


class ColorBar(NamedTuple):
    """The legend of the colours."""

    low: float
    high: float
    name: str
    scale: Pixels = COLOR_SCALE
    """(K, 3); over tissue, colours differ from those in colors.py."""
    is_diverging: bool = False
    """Whether zero is in the middle; then only the ends and zero are labelled."""
    effects: Effects | None = None
    """What these ends mean."""


def check_can_draw() -> None:
    """Raise an error if pillow is missing."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("slides", "drawing heatmaps") from error


def compose_figure(title: str, note: str, panels: Sequence[Panel], bar: ColorBar | None) -> Image:
    """Draw panels side by side, or below each other if they are wide, with title and legend.

    Args:
        title: the first line.
        note: the lines below it, wrapped to the width.
        panels: pictures of the same size.
        bar: drawn to the right; None if no panel shows scores.
    """
    from PIL import Image, ImageDraw

    height, width = panels[0].pixels.shape[:2]
    across = 1 if width > 1.7 * height else len(panels)
    down = -(-len(panels) // across)
    bar_width = _bar_width(bar) if bar else 0
    inner = across * width + (across - 1) * GAP_PX + bar_width
    total_width = max(inner, 640) + 2 * GAP_PX
    lines = _wrap_text(note, TEXT_PX, total_width - 2 * GAP_PX)
    top = GAP_PX + int(1.5 * TITLE_PX) + int(1.4 * TEXT_PX) * len(lines) + GAP_PX // 2
    cell = height + int(1.7 * TEXT_PX) + GAP_PX // 2
    low = max(down * cell, int(1.7 * TEXT_PX) + _bar_height(height, down) + TEXT_PX if bar else 0)
    image = Image.new("RGB", (total_width, top + low + GAP_PX // 2), "white")
    draw = ImageDraw.Draw(image)
    heading = _shorten_text(title, TITLE_PX, total_width - 2 * GAP_PX)
    draw_text(draw, (GAP_PX, GAP_PX), heading, TITLE_PX, TEXT_COLOR)
    for number, line in enumerate(lines):
        y = GAP_PX + int(1.5 * TITLE_PX) + number * int(1.4 * TEXT_PX)
        draw_text(draw, (GAP_PX, y), line, TEXT_PX, GRAY)
    for number, panel in enumerate(panels):
        x, y = GAP_PX + number % across * (width + GAP_PX), top + number // across * cell
        draw_text(draw, (x, y), _shorten_text(panel.caption, TEXT_PX, width), TEXT_PX, TEXT_COLOR)
        image.paste(Image.fromarray(panel.pixels), (x, y + int(1.7 * TEXT_PX)))
    if bar:
        corner = GAP_PX + across * (width + GAP_PX), top + int(1.7 * TEXT_PX)
        _draw_bar(image, draw, bar, corner, _bar_height(height, down))
    return image


# --- colour bar ----------------------------------------------------------------------------------


def _bar_height(height: int, down: int) -> int:
    return int(min(max(height, 260), 520)) if down == 1 else int(min(2 * height, 520))


def _bar_width(bar: ColorBar) -> int:
    texts = [*_format_ticks(bar), bar.name, *_shorten_effects(bar)]
    longest = max(_text_width(text, SMALL_TEXT_PX) for text in texts)
    return GAP_PX + max(_BAR_WIDTH + 12 + longest, 90)


def _format_ticks(bar: ColorBar) -> list[str]:
    """Return evenly spaced values, with as many digits as they need to look even."""
    values = np.linspace(bar.low, bar.high, _TICK_COUNT).tolist()
    if bar.low == bar.high:
        return [f"{bar.high:.4g}"]
    if bar.is_diverging:
        return [f"{bar.low:.3g}", "0", f"{bar.high:+.3g}"]
    for digits in range(2, 9):
        texts = [f"{value:.{digits}g}" for value in values]
        off = max(abs(float(text) - value) for text, value in zip(texts, values, strict=True))
        if off <= 0.01 * (bar.high - bar.low):
            break
    return texts


def _shorten_effects(bar: ColorBar) -> list[str]:
    return [_shorten_text(text, SMALL_TEXT_PX, _MAX_EFFECT_WIDTH) for text in bar.effects or ()]


def _draw_bar(
    image: Image, draw: ImageDraw, bar: ColorBar, corner: tuple[int, int], height: int
) -> None:
    from PIL import Image

    x, y = corner
    draw_text(draw, (x, y - int(1.7 * TEXT_PX) + 3), bar.name, SMALL_TEXT_PX, TEXT_COLOR)
    scale, texts = bar.scale, _format_ticks(bar)
    if len(texts) == 1:  # all scores are equal
        scale = scale[len(scale) // 2][None]
    steps = np.linspace(len(scale) - 1, 0, height).round().astype(int)
    column = np.repeat(scale[steps][:, None], _BAR_WIDTH, axis=1)
    image.paste(Image.fromarray(np.ascontiguousarray(column)), (x, y))
    for offset, text in zip(np.linspace(height - 1, 0, max(len(texts), 2)), texts, strict=False):
        at = y + (round(float(offset)) if len(texts) > 1 else height // 2)
        draw.line((x + _BAR_WIDTH, at, x + _BAR_WIDTH + 5, at), fill=TEXT_COLOR)
        draw_text(draw, (x + _BAR_WIDTH + 9, at), text, SMALL_TEXT_PX, TEXT_COLOR, anchor="lm")
    for text, at in zip(_shorten_effects(bar), (y + 20, y + height - 21), strict=False):
        draw_text(draw, (x + _BAR_WIDTH + 9, at), text, SMALL_TEXT_PX, TEXT_COLOR, anchor="lm")


# --- scale bar -----------------------------------------------------------------------------------


def draw_scale_bar(image: Image, downsample: float, mpp: float | None) -> None:
    """Draw a scale bar in the lower left corner, if µm per pixel are known."""
    from PIL import ImageDraw

    if mpp is None:
        return
    micron = 1 / (downsample * mpp)  # in pixels
    length = round_length(0.25 * image.width / micron)
    pixels = round(length * micron)
    draw = ImageDraw.Draw(image, "RGBA")
    text = f"{length / 1000:g} mm" if length >= 100 else f"{length:g} µm"
    wide = max(pixels, _text_width(text, TEXT_PX))
    x, y = 12, image.height - 12
    if pixels < 8 or image.height < 60 or wide + 2 * x > image.width:
        return
    draw.rectangle((x - 6, y - 34, x + wide + 6, y + 6), fill=(255, 255, 255, 205))
    draw.rectangle((x, y - 5, x + pixels - 1, y), fill=TEXT_COLOR)
    draw_text(draw, (x, y - 32), text, TEXT_PX, TEXT_COLOR)


def round_length(longest: float) -> float:
    """Return the largest 1, 2 or 5 times a power of ten that is not longer.

    >>> round_length(0.7), round_length(3400), round_length(200)
    (0.5, 2000, 200)
    """
    power = 10.0 ** math.floor(math.log10(longest))
    best = max(step * power for step in (1, 2, 5) if step * power <= longest * (1 + 1e-9))
    return int(best) if best >= 1 else best


# --- text ----------------------------------------------------------------------------------------


def draw_text(
    draw: ImageDraw,
    position: tuple[float, float],
    text: str,
    size: int,
    fill: tuple[int, int, int],
    *,
    anchor: str = "la",
) -> None:
    """Draw one line of text."""
    draw.text(position, _to_legible(text), fill=fill, font=_load_font(size), anchor=anchor)


@cache
def _load_font(size: int) -> FreeTypeFont | ImageFont:
    """Load matplotlib's font if it is installed: it has µ and many alphabets."""
    from PIL import ImageFont

    file = _find_font_file()
    return ImageFont.truetype(str(file), size) if file else ImageFont.load_default(size)


@cache
def _find_font_file() -> Path | None:
    found = importlib.util.find_spec("matplotlib")
    if found is None or found.origin is None:
        return None
    file = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"
    return file if file.is_file() else None


def _to_legible(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    return printable if _find_font_file() else printable.translate(_ASCII_FALLBACKS)


def _text_width(text: str, size: int) -> int:
    return math.ceil(_load_font(size).getlength(_to_legible(text)))


def _shorten_text(text: str, size: int, width: int) -> str:
    """Remove the middle of a line that is too long."""
    kept = len(text)
    while kept > 3 and _text_width(text, size) > width:
        kept = min(kept - 1, int(kept * width / _text_width(text, size)))
        text = f"{text[: kept // 2]}…{text[len(text) - kept // 2 :]}"
    return text


def _wrap_text(text: str, size: int, width: int) -> list[str]:
    lines: list[str] = []
    for paragraph in text.splitlines():
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}".strip()
            if line and _text_width(longer, size) > width:
                lines.append(line)
                longer = word
            line = longer
        lines.append(_shorten_text(line, size, width))
    return lines
