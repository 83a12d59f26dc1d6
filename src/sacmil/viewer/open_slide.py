"""Opens slides that need little memory, and rejects the others with a reason."""

from __future__ import annotations

from pathlib import Path

from sacmil.errors import MissingExtraError, SlideError
from sacmil.slides.readers import Slide, open_slide
from sacmil.viewer.allowed_paths import AllowedPath

MAX_PLAIN_PIXELS = 64_000_000
"""In a picture without tiles, which is held in memory: 192 MB."""
_READER_CACHE_BYTES = 16 * 2**20
_SINGLE_FILE_STARTS = (
    *(b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),  # TIFF and BigTIFF, which most vendors write
    *(b"\x89PNG", b"\xff\xd8\xff", b"BM"),
    *(b"SQLite format 3", b"ZISRAWFILE"),  # Sakura, Zeiss
)
_SINGLE_FILE_FORMATS = frozenset(
    {"aperio", "generic-tiff", "hamamatsu", "leica", "philips", "sakura", "ventana", "zeiss"}
)
"""OpenSlide's names. A Hamamatsu slide of several files (VMS) is text, so it starts differently."""
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
_TILE_WIDTH_TAG = 322  # a TIFF tag


def open_slide_with_limits(allowed_path: AllowedPath) -> Slide:
    """Open a slide with a small reader cache: the viewer has its own cache of tiles."""
    path = allowed_path.path
    vendor = _detect_format(path)
    if not (allowed_path.can_open_others or _is_single_file(path, vendor)):
        raise SlideError(
            f"{path.name}: is a slide of several files, which may be anywhere, or not a slide "
            f"({vendor or 'unknown format'}); if you trust it, start the "
            f"viewer again with the slide folder {path.parent}"
        )
    pixels = _count_plain_pixels(path) if vendor is None else 0
    if pixels > MAX_PLAIN_PIXELS:
        raise SlideError(
            f"{path.name}: is a picture of {pixels:,} pixels without tiles; expected at most "
            f"{MAX_PLAIN_PIXELS:,}; make a pyramid: {make_pyramid_command(path)}"
        )
    slide = open_slide(path)
    slide.set_cache_size(_READER_CACHE_BYTES)
    return slide


def make_pyramid_command(path: Path) -> str:
    """Return the libvips command that makes a pyramid."""
    return f"vips tiffsave {path.name} {path.stem}-pyramid.tif --tile --pyramid --compression jpeg"


def _is_single_file(path: Path, vendor: str | None) -> bool:
    """Whether opening a slide opens no other files."""
    with path.open("rb") as file:
        is_known = file.read(16).startswith(_SINGLE_FILE_STARTS)
    return is_known and (vendor is None or vendor in _SINGLE_FILE_FORMATS)


def _detect_format(path: Path) -> str | None:
    """Return the vendor that OpenSlide detects; None if it knows none."""
    try:
        import openslide
    except (ImportError, OSError):
        raise MissingExtraError("slides", "showing slides") from None
    vendor: str | None = openslide.OpenSlide.detect_format(path)
    return vendor


def _count_plain_pixels(path: Path) -> int:
    """Return the number of pixels held in memory; 0 for a tiled file or one that is no slide."""
    from PIL import Image

    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # only the header is read
    try:
        with Image.open(path, formats=_FORMATS) as image:
            tiled = _TILE_WIDTH_TAG in getattr(image, "tag_v2", {})
            return 0 if tiled else image.width * image.height
    except Exception:  # damaged files raise any exception; the readers report the error
        return 0
    finally:
        Image.MAX_IMAGE_PIXELS = limit
