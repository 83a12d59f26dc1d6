"""Finds the reader that can open a file.

A reader is a public module of this folder. It has a number ``PRIORITY``; the lowest is tried first.
Its ``open_slide(path) -> Slide`` raises SlideError for files it cannot read. The optional
``EXTENSIONS``, such as ``{".isyntax"}``, adds file extensions that no other reader has.
"""

from __future__ import annotations

import importlib
import pkgutil
import stat
from functools import cache
from pathlib import Path
from typing import Protocol

import sacmil.slides.readers
from sacmil.errors import MissingExtraError, SlideError, suggest_names
from sacmil.plugins import load_plugins
from sacmil.slides.readers._base import Slide


class Reader(Protocol):
    """The interface of the modules in this folder."""

    PRIORITY: int
    """The reader with the lowest is tried first."""

    def open_slide(self, path: Path) -> Slide:
        """Open the slide, or raise a SlideError."""


class DamagedSlideError(SlideError):
    """A slide of a known format that is incomplete; no other reader is tried."""


@cache
def _find_readers() -> dict[str, Reader]:
    names = [module.name for module in pkgutil.iter_modules(sacmil.slides.readers.__path__)]
    public = [name for name in names if not name.startswith("_")]
    modules = {name: importlib.import_module(f"sacmil.slides.readers.{name}") for name in public}
    added = {plugin.name: plugin.value for plugin in load_plugins("readers")}
    return dict(sorted((added | modules).items(), key=lambda item: item[1].PRIORITY))


def list_extra_extensions() -> frozenset[str]:
    """Return the extensions that readers add to those that folders are searched for anyway."""
    found: frozenset[str] = frozenset()
    return found.union(*(getattr(reader, "EXTENSIONS", ()) for reader in _find_readers().values()))


def list_readers() -> list[str]:
    """Return the names of the readers, in the order they are tried."""
    return list(_find_readers())


def open_slide(path: str | Path, reader: str | None = None) -> Slide:
    """Open a slide with the fastest reader that gives the same pixels as OpenSlide.

    Args:
        path: a slide or a plain image; its format is found by its content.
        reader: the name of the only reader to use, see ``list_readers()``.
    """
    path = Path(path)
    if reader is not None and reader not in _find_readers():
        raise SlideError(f"there is no reader {reader!r}; {suggest_names(reader, _find_readers())}")
    _check_is_file(path)
    if reader is not None:
        return _find_readers()[reader].open_slide(path)
    reasons: dict[str, SlideError | MissingExtraError] = {}
    for name, module in _find_readers().items():
        try:
            return module.open_slide(path)
        except DamagedSlideError:
            raise
        except (SlideError, MissingExtraError) as error:
            reasons[name] = error
    raise _make_unreadable_error(path, reasons)


def _make_unreadable_error(
    path: Path, reasons: dict[str, SlideError | MissingExtraError]
) -> SlideError | MissingExtraError:
    missing = [error for error in reasons.values() if isinstance(error, MissingExtraError)]
    if len(missing) == len(reasons):
        return missing[0]
    causes = [f"{name}: {_remove_path_prefix(path, error)}" for name, error in reasons.items()]
    return SlideError(
        f"{path}: found {_describe_file(path)}; expected a slide or an image that one of the "
        f"readers opens ({'; '.join(causes)}); check that the file is complete and is a slide"
    )


def _remove_path_prefix(path: Path, error: Exception) -> str:
    return str(error).removeprefix(f"{path}: ")


def _check_is_file(path: Path) -> None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        raise SlideError(
            f"{path}: there is no such file; expected a slide, check the path"
        ) from None
    except OSError as error:
        raise SlideError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if not stat.S_ISREG(status.st_mode):
        found = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise SlideError(f"{path}: this is {found}; expected the file of one slide")
    if status.st_size == 0:
        raise SlideError(f"{path}: this file is empty (0 bytes); expected a slide, copy it again")


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


def _describe_file(path: Path) -> str:
    """Describe a file by its first bytes and its size."""
    with path.open("rb") as file:
        start = file.read(512)
    kind = next((kind for bytes_, kind in _MAGIC_BYTES.items() if start.startswith(bytes_)), None)
    if kind is None:
        kind = "a text file" if _is_text(start) else "a file of an unknown kind"
    return f"{kind} of {path.stat().st_size:,} bytes"


def _is_text(start: bytes) -> bool:
    text = start.decode("utf-8", errors="replace")[:-4]  # the end may be half a character
    return bool(start) and all(letter.isprintable() or letter in "\n\r\t" for letter in text)
