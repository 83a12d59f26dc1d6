"""Responses for clients that do not accept gzip."""

from __future__ import annotations

import gzip
import io
from collections.abc import AsyncIterator, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Message, Send

_PIECE_BYTES = 2**16


class UnpackedResponse(StreamingResponse):
    """Unpacks a gzipped body while it is sent; whole, it would cost each slow client its full size.

    Args:
        packed: the gzipped body; every message names it as what sending keeps in memory.
        headers: of the response.
        media_type: of the unpacked body.
    """

    def __init__(self, packed: bytes, headers: Mapping[str, str], media_type: str) -> None:
        super().__init__(_unpack(packed), 200, headers, media_type)
        self._packed = packed

    async def stream_response(self, send: Send) -> None:
        """Send the head and all pieces."""

        async def send_with_source(message: Message) -> None:
            await send({**message, "source": self._packed})

        await super().stream_response(send_with_source)


async def _unpack(packed: bytes) -> AsyncIterator[bytes]:
    with gzip.open(io.BytesIO(packed)) as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
