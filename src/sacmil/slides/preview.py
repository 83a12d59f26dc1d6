"""A picture per slide to accept or reject at a glance: outline of the tissue, grid of the tiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from sacmil.atomic import whole_file
from sacmil.errors import MissingExtraError
from sacmil.slides.ink import Mask
from sacmil.slides.readers._base import Slide
from sacmil.slides.thumbnail import Thumbnail, thumbnail
from sacmil.slides.tiling import Tiles
from sacmil.slides.tissue import Tissue

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.PngImagePlugin import PngInfo

_SIDE = 1200
_CAPTION = 34
_OUTLINE = (0, 150, 40)
_GRID = (20, 50, 220)
_NARROWEST_GRID = 5  # pixels; tiles smaller than that in the picture are tinted, not framed


def draw_preview(
    slide: Slide | Thumbnail,
    tissue: Tissue | None,
    tiles: Tiles | None,
    path: str | Path,
    *,
    title: str = "",
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write the picture as PNG, at most 1,200 pixels a side and a line of text below.

    Args:
        slide: the slide, or what ``tissue.survey`` made of it.
        tissue: outlined in green; None where none was found.
        tiles: framed in blue; None where none were laid.
        path: where to; the file appears only when it is complete.
        title: the beginning of the line of text, such as the slide's name.
        facts: what the picture shows, kept inside the file for ``read_facts``.
    """
    if isinstance(slide, Slide):
        slide = thumbnail(slide, max(slide.size) / _SIDE, max_side=2 * _SIDE)
    picture, scale = _fitted(slide)
    if tiles is not None:
        _draw_tiles(picture, tiles, scale)
    if tissue is not None:
        _draw_outline(picture, tissue, scale)
    picture = _with_caption(picture, " · ".join(filter(None, [title, *_facts(tissue, tiles)])))
    with whole_file(path) as partial:
        # Level 1 takes a quarter of the time of level 6; the file is up to a quarter larger.
        picture.save(partial, format="PNG", pnginfo=_noted(facts or {}), compress_level=1)


def read_facts(path: str | Path) -> dict[str, str]:
    """What a preview says of itself; empty where it is missing, damaged or from elsewhere."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            return {str(key): text for key, text in picture.info.items() if isinstance(text, str)}
    except (OSError, SyntaxError, ValueError):
        return {}


def _noted(facts: Mapping[str, str]) -> PngInfo:
    from PIL import PngImagePlugin

    noted = PngImagePlugin.PngInfo()
    for key, value in facts.items():
        noted.add_text(key, value)
    return noted


def _fitted(slide: Thumbnail) -> tuple[Image, float]:
    """The picture at the size of the preview, and its pixels per level-0 pixel."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("slides", "drawing previews") from error
    height, width = slide.pixels.shape[:2]
    zoom = _SIDE / max(width, height)
    size = max(1, round(width * zoom)), max(1, round(height * zoom))
    return Image.fromarray(slide.pixels).resize(size, Image.Resampling.BICUBIC), (
        zoom / slide.downsample
    )


def _draw_tiles(picture: Image, tiles: Tiles, scale: float) -> None:
    from PIL import Image, ImageDraw

    frames, tint = (Image.new("L", picture.size) for _ in range(2))
    is_framed = tiles.side * scale >= _NARROWEST_GRID
    frame, fill = ImageDraw.Draw(frames), ImageDraw.Draw(tint)
    for x, y in tiles.coords.tolist():
        corners = [round(place * scale) for place in (x, y, x + tiles.side, y + tiles.side)]
        fill.rectangle(corners, fill=26)
        if is_framed:
            frame.rectangle(corners, outline=120)
    picture.paste(_GRID, mask=tint)
    picture.paste(_GRID, mask=frames)


def _draw_outline(picture: Image, tissue: Tissue, scale: float) -> None:
    from PIL import Image

    mask = Image.fromarray(tissue.mask).convert("L")
    zoom = tissue.downsample * scale
    size = max(1, round(mask.width * zoom)), max(1, round(mask.height * zoom))
    large = Image.new("L", picture.size)
    large.paste(mask.resize(size, Image.Resampling.BILINEAR))
    border = _border(np.asarray(large) > 127)
    picture.paste(_OUTLINE, mask=Image.fromarray(border.astype(np.uint8) * 230))


def _border(mask: Mask) -> Mask:
    """Two pixels along the inside of the mask; the picture's own edge is not outside."""
    inner = ndimage.binary_erosion(mask, iterations=2, border_value=1)
    return np.asarray(mask & ~inner, bool)


def _facts(tissue: Tissue | None, tiles: Tiles | None) -> list[str]:
    if tissue is None:
        return ["no tissue found"]
    facts = [f"{tissue.share:.0%} tissue"]
    if tiles is not None:
        facts.append(f"{len(tiles):,} tiles of {tiles.side:g} level-0 pixels")
    return facts


def _with_caption(picture: Image, text: str) -> Image:
    """The picture with a line of text below; a long line loses its beginning, the title."""
    from PIL import Image, ImageDraw, ImageFont

    text = " ".join(text.split())  # names may hold line breaks
    width = max(picture.width, _SIDE // 2)
    whole = Image.new("RGB", (width, picture.height + _CAPTION), "white")
    whole.paste(picture)
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(18)
    while text and draw.textlength(text, font=font) > width - 16:
        text = "…" + text[max(2, len(text) // 10) :]
    draw.text((8, picture.height + 6), text, fill="black", font=font)
    return whole
