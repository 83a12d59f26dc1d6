"""Responses for clients that do not accept gzip."""

from __future__ import annotations

import gzip
import io
from collections.abc import AsyncIterator, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Message, Send

_CHUNK_BYTES = 2**16


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
