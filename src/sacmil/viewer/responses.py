"""The responses of the viewer, and the files of its built page."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import mimetypes
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

STATIC = Path(__file__).parent / "static"
_CHUNK_BYTES = 2**16
_DOCUMENT_STARTS = {
    b"\x1f\x8b": "application/json",  # gzipped
    b"\xff\xd8\xff": "image/jpeg",
    b"\x89PNG": "image/png",
}
_MEDIA_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
_NOT_BUILT_PAGE = (
    b"<!doctype html><meta charset=utf-8><title>sacmil</title>"
    b"<p>The page is not built: install Node.js 20 or newer and run <code>make viewer</code>."
)


class ResponseDocument(NamedTuple):
    """The body of a response."""

    body: bytes
    media_type: str
    gzipped: bool = False


def detect_document(body: bytes) -> ResponseDocument:
    """Return gzipped JSON, a JPEG or a PNG with its media type, by its first bytes."""
    start, media_type = next(each for each in _DOCUMENT_STARTS.items() if body.startswith(each[0]))
    return ResponseDocument(body, media_type, gzipped=start == b"\x1f\x8b")


def make_response(request: Request, document: ResponseDocument) -> Response:
    """Return a response that browsers revalidate each time: numbers may change their meaning."""
    tag = _make_etag(document)
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Accept-Encoding"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if document.gzipped and "gzip" not in request.headers.get("accept-encoding", ""):
        return UnpackedResponse(document.body, headers, document.media_type)
    if document.gzipped:
        headers["Content-Encoding"] = "gzip"
    return Response(document.body, headers=headers, media_type=document.media_type)


def _make_etag(document: ResponseDocument) -> str:
    """Return a tag that changes with the document."""
    if document.gzipped:  # gzip ends with the CRC and the length of the content
        return f'"{document.body[-8:].hex()}-{len(document.body):x}"'
    return f'"{hashlib.blake2b(document.body, digest_size=16).hexdigest()}"'


def make_error_response(
    status: int, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with the body ``{"error": message}``.

    Args:
        status: of HTTP.
        message: for the user.
        headers: additional ones.
    """
    # plain ASCII, as a file name may contain bytes that are not valid UTF-8
    body = json.dumps({"error": message}).encode("ascii")
    return Response(body, status, headers, "application/json")


class UnpackedResponse(StreamingResponse):
    """Unpacks a gzipped body in chunks while sending: slow clients must not cost its full size.

    Args:
        packed: the gzipped body; every message refers to it as the body held in memory.
        headers: of the response.
        media_type: of the unpacked body.
    """

    def __init__(self, packed: bytes, headers: Mapping[str, str], media_type: str) -> None:
        super().__init__(_unpack(packed), 200, headers, media_type)
        self._packed = packed

    async def stream_response(self, send: Send) -> None:
        """Send the head and all chunks."""

        async def send_with_source(message: Message) -> None:
            await send({**message, "source": self._packed})

        await super().stream_response(send_with_source)


async def _unpack(packed: bytes) -> AsyncIterator[bytes]:
    with gzip.open(io.BytesIO(packed)) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def is_built(static: Path = STATIC) -> bool:
    """Whether the page is built."""
    return (static / "index.html").is_file()


def read_page_files(static: Path = STATIC) -> dict[str, ResponseDocument]:
    """Return every file by its URL path. All are read now, so no URL ever becomes a file path."""
    if not is_built(static):
        return {"/": ResponseDocument(_NOT_BUILT_PAGE, "text/html")}
    found = {
        f"/{path.relative_to(static).as_posix()}": _read_page_file(path)
        for path in sorted(static.rglob("*"))
        if path.is_file()
    }
    return found | {"/": found["/index.html"]}


def _read_page_file(path: Path) -> ResponseDocument:
    known = _MEDIA_TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    return ResponseDocument(path.read_bytes(), known or "application/octet-stream")
