"""The files of the built page in static/, each with its URL path."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import NamedTuple

STATIC = Path(__file__).parent / "static"
_MEDIA_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
_NOT_BUILT_PAGE = (
    b"<!doctype html><meta charset=utf-8><title>sacmil</title>"
    b"<p>The page is not built: install Node.js 20 or newer and run <code>make viewer</code>."
)


class PageFile(NamedTuple):
    """A file of the page."""

    body: bytes
    media_type: str


def is_built(static: Path = STATIC) -> bool:
    """Whether the page is built."""
    return (static / "index.html").is_file()


def read_page_files(static: Path = STATIC) -> dict[str, PageFile]:
    """Return every file by its URL path. All are read now, so no URL ever becomes a file path."""
    if not is_built(static):
        return {"/": PageFile(_NOT_BUILT_PAGE, "text/html")}
    files = [path for path in sorted(static.rglob("*")) if path.is_file()]
    found = {
        f"/{path.relative_to(static).as_posix()}": PageFile(
            path.read_bytes(), _guess_media_type(path)
        )
        for path in files
    }
    return found | {"/": found["/index.html"]}


def _guess_media_type(path: Path) -> str:
    known = _MEDIA_TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    return known or "application/octet-stream"
