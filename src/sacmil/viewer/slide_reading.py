"""Opens slides within limits and reads their tiles; runs in a process of its own."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sacmil.errors import MissingExtraError, SacMILError, SlideError
from sacmil.slides.readers import Slide, open_slide
from sacmil.slides.resolution import MAX_MPP, MIN_MPP
from sacmil.viewer.allowed_paths import AllowedPath
from sacmil.viewer.deep_zoom import DeepZoom, make_pyramid_command

Size = tuple[int, int]

MAX_OPEN = 4
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
_PLAIN_FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
_TILE_WIDTH_TAG = 322  # a TIFF tag
_JPEG_QUALITY = 80


class SlideShape(NamedTuple):
    """Size, scale and Deep Zoom levels of a slide."""

    size: Size
    mpp: float | None
    levels: int
    bounds: tuple[int, int] | None


def read_shape(allowed_path: AllowedPath, expected_size: Size | None) -> SlideShape:
    """Return the shape of a slide.

    Args:
        allowed_path: of the slide.
        expected_size: its size, if known.
    """
    with _open_zoom(allowed_path, expected_size) as zoom:
        slide = zoom.slide
        is_plausible = slide.mpp is not None and MIN_MPP <= slide.mpp <= MAX_MPP
        mpp = slide.mpp if is_plausible else None
        return SlideShape(slide.size, mpp, zoom.levels, slide.bounds_origin)


def read_tile(
    allowed_path: AllowedPath, expected_size: Size | None, level: int, x: int, y: int
) -> bytes | None:
    """Return a Deep Zoom tile as JPEG; None if there is none."""
    from PIL import Image

    with _open_zoom(allowed_path, expected_size) as zoom:
        pixels = zoom.read_tile(level, x, y)
    if pixels is None:
        return None
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=_JPEG_QUALITY)
    return stream.getvalue()


@contextmanager
def _open_zoom(allowed_path: AllowedPath, expected_size: Size | None) -> Iterator[DeepZoom]:
    """Open a slide, or take it from this process's cache."""
    try:
        zoom = _open_slides.get(allowed_path)
        if expected_size is not None and expected_size != zoom.slide.size:
            found, wanted = (f"{w:,} x {h:,}" for w, h in (zoom.slide.size, expected_size))
            raise SlideError(
                f"{zoom.slide.path.name}: has {found} pixels; expected {wanted}, as the slide of "
                "the prediction had: this is another slide of that name"
            )
        yield zoom
    except (SacMILError, OSError):
        _open_slides.drop(allowed_path)  # OpenSlide fails on every read after a failed one
        raise


def _open_deep_zoom(allowed_path: AllowedPath) -> DeepZoom:
    slide = open_slide_with_limits(allowed_path)
    try:
        return DeepZoom(slide)
    except BaseException:
        slide.close()
        raise


class SlideCache:
    """Opens slides, and closes the least recently used; for one thread.

    Args:
        max_open: how many slides are open at a time.
        opener: opens the slide at a path.
    """

    def __init__(
        self, max_open: int = MAX_OPEN, opener: Callable[[AllowedPath], DeepZoom] = _open_deep_zoom
    ) -> None:
        self._max_open = max_open
        self._opener = opener
        self._slides: OrderedDict[AllowedPath, DeepZoom] = OrderedDict()

    def get(self, allowed_path: AllowedPath) -> DeepZoom:
        """Return the open slide at a path; a rewritten file is opened again."""
        if allowed_path not in self._slides:
            while len(self._slides) >= self._max_open:
                self._slides.popitem(last=False)[1].close()
            self._slides[allowed_path] = self._opener(allowed_path)
        self._slides.move_to_end(allowed_path)
        return self._slides[allowed_path]

    def drop(self, allowed_path: AllowedPath) -> None:
        """Close a slide if it is open."""
        if allowed_path in self._slides:
            self._slides.pop(allowed_path).close()


_open_slides = SlideCache()


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
        with Image.open(path, formats=_PLAIN_FORMATS) as image:
            tiled = _TILE_WIDTH_TAG in getattr(image, "tag_v2", {})
            return 0 if tiled else image.width * image.height
    except Exception:  # damaged files raise any exception; the readers report the error
        return 0
    finally:
        Image.MAX_IMAGE_PIXELS = limit
