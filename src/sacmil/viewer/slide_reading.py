"""Functions that run in a reading process: they open slides and read their tiles."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeVar

from sacmil.errors import SacMILError, SlideError
from sacmil.slides.readers import Pixels
from sacmil.slides.resolution import MAX_MPP, MIN_MPP
from sacmil.viewer.allowed_paths import AllowedPath
from sacmil.viewer.deep_zoom import DeepZoom
from sacmil.viewer.slide_cache import SlideCache

Size = tuple[int, int]
ResultT = TypeVar("ResultT")
_JPEG_QUALITY = 80


class SlideShape(NamedTuple):
    """Size, scale and Deep Zoom levels of a slide."""

    size: Size
    mpp: float | None
    levels: int
    bounds: tuple[int, int] | None


class ReadFailure(NamedTuple):
    """Why reading failed."""

    message: str


def read_shape(allowed_path: AllowedPath, expected_size: Size | None) -> SlideShape | ReadFailure:
    """Return the shape of a slide, or why it cannot be read.

    Args:
        allowed_path: of the slide.
        expected_size: its size, if known.
    """
    return _call_with_slide(allowed_path, expected_size, _describe_shape)


def read_tile(
    allowed_path: AllowedPath, expected_size: Size | None, level: int, x: int, y: int
) -> bytes | ReadFailure | None:
    """Return a Deep Zoom tile as JPEG; None if there is none."""

    def cut(zoom: DeepZoom) -> bytes | None:
        pixels = zoom.read_tile(level, x, y)
        return None if pixels is None else _encode_jpeg(pixels)

    return _call_with_slide(allowed_path, expected_size, cut)


@cache
def _get_slide_cache() -> SlideCache:
    """Return the slide cache of this process."""
    return SlideCache()


def _call_with_slide(
    allowed_path: AllowedPath, expected_size: Size | None, make: Callable[[DeepZoom], ResultT]
) -> ResultT | ReadFailure:
    try:
        zoom = _get_slide_cache().get(allowed_path)
        _check_size(zoom, expected_size)
        return make(zoom)
    except SacMILError as error:
        _get_slide_cache().drop(allowed_path)
        return ReadFailure(str(error))
    except OSError as error:
        _get_slide_cache().drop(allowed_path)
        return ReadFailure(f"{allowed_path.path.name}: cannot be read ({error.strerror or error})")


def _check_size(zoom: DeepZoom, expected_size: Size | None) -> None:
    if expected_size is not None and expected_size != zoom.slide.size:
        found, wanted = (f"{w:,} x {h:,}" for w, h in (zoom.slide.size, expected_size))
        raise SlideError(
            f"{zoom.slide.path.name}: has {found} pixels; expected {wanted}, as the slide of the "
            "prediction had: this is another slide of that name"
        )


def _describe_shape(zoom: DeepZoom) -> SlideShape:
    stated = zoom.slide.mpp
    mpp = stated if stated is not None and MIN_MPP <= stated <= MAX_MPP else None
    return SlideShape(zoom.slide.size, mpp, zoom.levels, zoom.slide.bounds_origin)


def _encode_jpeg(pixels: Pixels) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=_JPEG_QUALITY)
    return stream.getvalue()
