"""What a reading process does: opens slides, says how they are cut, cuts their tiles."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeVar

from sacmil.errors import SacMILError, SlideError
from sacmil.slides.readers import Pixels
from sacmil.slides.resolution import COARSEST, FINEST
from sacmil.viewer.confinement import Place
from sacmil.viewer.deep_zoom import DeepZoom
from sacmil.viewer.open_slides import OpenSlides

Size = tuple[int, int]
Made = TypeVar("Made")
_JPEG_QUALITY = 80


class Shape(NamedTuple):
    """How a slide is cut."""

    size: Size
    mpp: float | None
    levels: int
    bounds: tuple[int, int] | None


class Told(NamedTuple):
    """Why there is nothing, in a sentence."""

    sentence: str


def read_shape(place: Place, expected: Size | None) -> Shape | Told:
    """How a slide is cut, or why it cannot be.

    Args:
        place: of the slide.
        expected: its size, where that is known.
    """
    return _with_slide(place, expected, _shape)


def read_tile(
    place: Place, expected: Size | None, level: int, x: int, y: int
) -> bytes | Told | None:
    """A Deep Zoom tile as JPEG; None where there is none."""

    def cut(zoom: DeepZoom) -> bytes | None:
        pixels = zoom.tile(level, x, y)
        return None if pixels is None else _jpeg(pixels)

    return _with_slide(place, expected, cut)


@cache
def _slides() -> OpenSlides:
    """Of this process."""
    return OpenSlides()


def _with_slide(
    place: Place, expected: Size | None, make: Callable[[DeepZoom], Made]
) -> Made | Told:
    try:
        zoom = _slides().get(place)
        _check_size(zoom, expected)
        return make(zoom)
    except SacMILError as error:
        _slides().drop(place)
        return Told(str(error))
    except OSError as error:
        _slides().drop(place)
        return Told(f"{place.path.name}: cannot be read ({error.strerror or error})")


def _check_size(zoom: DeepZoom, expected: Size | None) -> None:
    if expected is not None and expected != zoom.slide.size:
        found, wanted = (f"{w:,} x {h:,}" for w, h in (zoom.slide.size, expected))
        raise SlideError(
            f"{zoom.slide.path.name}: has {found} pixels; expected {wanted}, as the slide that was "
            "answered: this is another slide of that name"
        )


def _shape(zoom: DeepZoom) -> Shape:
    stated = zoom.slide.mpp
    mpp = stated if stated is not None and FINEST <= stated <= COARSEST else None
    return Shape(zoom.slide.size, mpp, zoom.levels, zoom.slide.bounds_origin)


def _jpeg(pixels: Pixels) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=_JPEG_QUALITY)
    return stream.getvalue()
