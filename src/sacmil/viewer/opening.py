"""Opens a slide so that it takes little memory, or says why it would take much."""

from __future__ import annotations

from pathlib import Path

from sacmil.errors import MissingExtraError, SlideError
from sacmil.slides.readers import Slide, open_slide

MOST_PLAIN_PIXELS = 64_000_000
"""Of a picture without tiles, which is held in memory: 192 MB."""
_READER_BYTES = 16 * 2**20
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
_TILE_WIDTH = 322  # a TIFF tag


def open_bounded(path: Path) -> Slide:
    """The slide, whose reader keeps few decoded tiles: the viewer keeps its own."""
    pixels = _plain_pixels(path)
    if pixels > MOST_PLAIN_PIXELS:
        raise SlideError(
            f"{path.name}: is a picture of {pixels:,} pixels without tiles; expected at most "
            f"{MOST_PLAIN_PIXELS:,}: {pyramid_command(path)}"
        )
    slide = open_slide(path)
    slide.keep_decoded(_READER_BYTES)
    return slide


def pyramid_command(path: Path) -> str:
    """What to type for a pyramid, by libvips."""
    return f"vips tiffsave {path.name} {path.stem}-pyramid.tif --tile --pyramid --compression jpeg"


def _plain_pixels(path: Path) -> int:
    """How many pixels would be held in memory; 0 for what is read by tiles, or is no slide."""
    try:
        import openslide
        from PIL import Image
    except (ImportError, OSError):
        raise MissingExtraError("slides", "showing slides") from None
    if openslide.OpenSlide.detect_format(path) is not None:
        return 0
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # only the header is read
    try:
        with Image.open(path, formats=_FORMATS) as image:
            tiled = _TILE_WIDTH in getattr(image, "tag_v2", {})
            return 0 if tiled else image.width * image.height
    except Exception:  # a parser of damaged files raises anything; the readers say what is wrong
        return 0
    finally:
        Image.MAX_IMAGE_PIXELS = limit
