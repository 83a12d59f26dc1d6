"""Draws a preview of a slide: outline of the tissue and grid of the tiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import ndimage

from sacmil.atomic import atomic_write
from sacmil.errors import MissingExtraError
from sacmil.slides.pixels import Thumbnail, make_thumbnail
from sacmil.slides.readers._base import Slide
from sacmil.slides.tiling import Tiles
from sacmil.slides.tissue import Tissue

if TYPE_CHECKING:
    from PIL.Image import Image

_SIDE = 1200
_CAPTION_PX = 34
_OUTLINE_COLOR = (0, 150, 40)
_GRID_COLOR = (20, 50, 220)
_MIN_FRAMED_PX = 5  # pixels; smaller tiles are tinted, not framed


def draw_preview(
    slide: Slide | Thumbnail,
    tissue: Tissue | None,
    tiles: Tiles | None,
    path: str | Path,
    *,
    title: str = "",
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the preview as PNG, its longer side 1,200 pixels, with a line of text below.

    Args:
        slide: the slide, or a thumbnail of it.
        tissue: outlined in green; None if none was found.
        tiles: framed in blue; None if there are none.
        path: of the file, which appears only when it is complete.
        title: the beginning of the line of text, such as the slide's name.
        metadata: stored inside the file for ``read_metadata``.
    """
    try:
        from PIL.PngImagePlugin import PngInfo
    except ImportError as error:
        raise MissingExtraError("slides", "drawing previews") from error
    if isinstance(slide, Slide):
        slide = make_thumbnail(slide, max(slide.size) / _SIDE, max_side=2 * _SIDE)
    picture, scale = _resize_to_preview(slide)
    if tiles is not None:
        _draw_tiles(picture, tiles, scale)
    if tissue is not None:
        _draw_outline(picture, tissue, scale)
    picture = _add_caption(picture, _write_caption(title, tissue, tiles))
    info = PngInfo()
    for key, value in (metadata or {}).items():
        info.add_text(key, value)
    with atomic_write(path) as partial:
        # Level 1 takes a quarter of the time of level 6; the file is up to a quarter larger.
        picture.save(partial, format="PNG", pnginfo=info, compress_level=1)


def read_metadata(path: str | Path) -> dict[str, str]:
    """Return the metadata of a preview; empty if the file is missing, damaged or foreign."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            return {str(key): text for key, text in picture.info.items() if isinstance(text, str)}
    except (OSError, SyntaxError, ValueError):
        return {}


def _resize_to_preview(slide: Thumbnail) -> tuple[Image, float]:
    """Return the picture at the size of the preview, and its pixels per level-0 pixel."""
    from PIL import Image

    height, width = slide.pixels.shape[:2]
    zoom = _SIDE / max(width, height)
    size = max(1, round(width * zoom)), max(1, round(height * zoom))
    picture = Image.fromarray(slide.pixels).resize(size, Image.Resampling.BICUBIC)
    return picture, zoom / slide.downsample


def _draw_tiles(picture: Image, tiles: Tiles, scale: float) -> None:
    from PIL import Image, ImageDraw

    frames, tint = (Image.new("L", picture.size) for _ in range(2))
    is_framed = tiles.side * scale >= _MIN_FRAMED_PX
    frame, fill = ImageDraw.Draw(frames), ImageDraw.Draw(tint)
    for x, y in tiles.coords.tolist():
        corners = [round(at * scale) for at in (x, y, x + tiles.side, y + tiles.side)]
        fill.rectangle(corners, fill=26)
        if is_framed:
            frame.rectangle(corners, outline=120)
    picture.paste(_GRID_COLOR, mask=tint)
    picture.paste(_GRID_COLOR, mask=frames)


def _draw_outline(picture: Image, tissue: Tissue, scale: float) -> None:
    from PIL import Image

    mask = Image.fromarray(tissue.mask).convert("L")
    zoom = tissue.downsample * scale
    size = max(1, round(mask.width * zoom)), max(1, round(mask.height * zoom))
    large = Image.new("L", picture.size)
    large.paste(mask.resize(size, Image.Resampling.BILINEAR))
    inside = np.asarray(large) > 127
    # two pixels along the inside, but not along the picture's edge
    border = inside & ~ndimage.binary_erosion(inside, iterations=2, border_value=1)
    picture.paste(_OUTLINE_COLOR, mask=Image.fromarray(border.astype(np.uint8) * 230))


def _write_caption(title: str, tissue: Tissue | None, tiles: Tiles | None) -> str:
    parts = ["no tissue found" if tissue is None else f"{tissue.share:.0%} tissue"]
    if tissue is not None and tiles is not None:
        parts.append(f"{len(tiles):,} tiles of {tiles.side:g} level-0 pixels")
    return " · ".join([title, *parts] if title else parts)


def _add_caption(picture: Image, text: str) -> Image:
    """Add a line of text below; a long line loses its beginning, the title."""
    from PIL import Image, ImageDraw, ImageFont

    text = " ".join(text.split())  # names may contain line breaks
    width = max(picture.width, _SIDE // 2)
    canvas = Image.new("RGB", (width, picture.height + _CAPTION_PX), "white")
    canvas.paste(picture)
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(18)
    while text and draw.textlength(text, font=font) > width - 16:
        text = "…" + text[max(2, len(text) // 10) :]
    draw.text((8, picture.height + 6), text, fill="black", font=font)
    return canvas
