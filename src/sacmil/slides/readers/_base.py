"""The interface of readers, and the choice of the reader that can open a file.

A reader is a public module of this folder. It has a number ``PRIORITY``; the lowest is tried first.
Its ``open_slide(path) -> Slide`` raises SlideError for files it cannot read. The optional
``EXTENSIONS``, such as ``{".isyntax"}``, adds file extensions that no other reader has.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

import sacmil.slides.readers
from sacmil.arguments import check_is_file
from sacmil.errors import MissingExtraError, SlideError, suggest_names
from sacmil.plugins import import_public_modules, load_plugins
from sacmil.units import MicronsPerPixel

Pixels = npt.NDArray[np.uint8]
"""(height, width, 3), RGB."""

_MAGIC_BYTES = {
    b"II*\0": "a TIFF file",
    b"MM\0*": "a TIFF file",
    b"II+\0": "a BigTIFF file",
    b"MM\0+": "a BigTIFF file",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"BM": "a BMP image",
    b"GIF8": "a GIF image",
    b"\x89HDF": "an HDF5 file",
    b"PK": "a ZIP archive",
    b"\x1f\x8b": "a gzip archive",
    b"%PDF": "a PDF document",
}


class Level(NamedTuple):
    """One resolution of a pyramid."""

    width: int
    height: int
    downsample: float
    """Level-0 pixels per pixel of this level; 1.0 at level 0."""


class Slide(ABC):
    """An open slide. Use it in a ``with`` block; one process, one thread."""

    reader: str
    """Name of the reader that opened it."""
    path: Path
    levels: tuple[Level, ...]
    """The finest first."""
    mpp: MicronsPerPixel | None
    """Microns per level-0 pixel as the file states it, plausible or not; None if it does not."""
    bounds_origin: tuple[int, int] | None = None
    """Upper left corner of the scanned area, if the format has one."""

    @abstractmethod
    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        """Read a region of a level; pixels outside the slide are white.

        Args:
            x: left border in level-0 pixels, at a whole pixel of the level.
            y: upper border in level-0 pixels.
            level: index into ``levels``.
            width: in pixels of that level.
            height: in pixels of that level.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def set_cache_size(self, max_bytes: int) -> None:  # noqa: B027 - most readers keep nothing
        """Keep at most ``max_bytes`` of decoded tiles for later reads."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of level 0."""
        return self.levels[0].width, self.levels[0].height

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DamagedSlideError(SlideError):
    """A slide of a known format that is incomplete; no other reader is tried."""


def list_readers() -> list[str]:
    """Return the names of the readers, in the order they are tried."""
    return list(_find_readers())


def list_extra_extensions() -> frozenset[str]:
    """Return the extensions that readers add to those that folders are searched for anyway."""
    found: frozenset[str] = frozenset()
    return found.union(*(getattr(reader, "EXTENSIONS", ()) for reader in _find_readers().values()))


def open_slide(path: str | Path, reader: str | None = None) -> Slide:
    """Open a slide with the fastest reader that gives the same pixels as OpenSlide.

    Args:
        path: a slide or a plain image; its format is found by its content.
        reader: the name of the only reader to use, see ``list_readers()``.
    """
    path, readers = Path(path), _find_readers()
    if reader is not None and reader not in readers:
        raise SlideError(f"there is no reader {reader!r}; {suggest_names(reader, readers)}")
    check_is_file(path, "slide", SlideError)
    if path.stat().st_size == 0:
        raise SlideError(f"{path}: this file is empty (0 bytes); expected a slide, copy it again")
    reasons: dict[str, SlideError | MissingExtraError] = {}
    for name, module in readers.items():
        if reader is not None and name != reader:
            continue
        try:
            slide: Slide = module.open_slide(path)
            return slide
        except (SlideError, MissingExtraError) as error:
            if reader is not None or isinstance(error, DamagedSlideError):
                raise
            reasons[name] = error
    raise _make_unreadable_error(path, reasons)


def paste_picture(region: Pixels, picture: Pixels, *, left: int, top: int) -> None:
    """Copy a picture into a region at a position; what is outside the region is left out."""
    height, width = picture.shape[:2]
    target = region[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    inside = picture[max(-top, 0) :, max(-left, 0) :]
    target[...] = inside[: target.shape[0], : target.shape[1]]


def parse_number(text: str | None) -> float | None:
    """Return the number in a text; None if there is none, or if it is not finite."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def average_mpp(sizes: Sequence[float | None]) -> MicronsPerPixel | None:
    """Return the mean of the axes; None if one of them is unknown or not finite."""
    known = [size for size in sizes if size is not None and math.isfinite(size)]
    return MicronsPerPixel(sum(known) / len(known)) if len(known) == len(sizes) else None


@cache
def _find_readers() -> dict[str, Any]:
    added = {plugin.name: plugin.value for plugin in load_plugins("readers")}
    readers = added | import_public_modules(sacmil.slides.readers)
    return dict(sorted(readers.items(), key=lambda item: item[1].PRIORITY))


def _make_unreadable_error(
    path: Path, reasons: dict[str, SlideError | MissingExtraError]
) -> SlideError | MissingExtraError:
    missing = [error for error in reasons.values() if isinstance(error, MissingExtraError)]
    if len(missing) == len(reasons):
        return missing[0]
    causes = [f"{name}: {str(one).removeprefix(f'{path}: ')}" for name, one in reasons.items()]
    return SlideError(
        f"{path}: found {_describe_file(path)}; expected a slide or an image that one of the "
        f"readers opens ({'; '.join(causes)}); check that the file is complete and is a slide"
    )


def _describe_file(path: Path) -> str:
    """Describe a file by its first bytes and its size."""
    with path.open("rb") as file:
        start = file.read(512)
    text = start.decode("utf-8", errors="replace")[:-4]  # the end may be half a character
    is_text = all(letter.isprintable() or letter in "\n\r\t" for letter in text)
    other = "a text file" if is_text else "a file of an unknown kind"
    kind = next((kind for magic, kind in _MAGIC_BYTES.items() if start.startswith(magic)), other)
    return f"{kind} of {path.stat().st_size:,} bytes"
