"""Sends requests to an ASGI app as a server would."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

HOST = "127.0.0.1:8765"


class Reply(NamedTuple):
    """The app's response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, which must be JSON."""
        packed = self.headers.get("content-encoding") == "gzip"
        return json.loads(gzip.decompress(self.body) if packed else self.body)


def fetch(app: Any, target: str, **options: Any) -> Reply:
    """One request; see ``fetch_async`` for its options."""
    return asyncio.run(fetch_async(app, target, **options))


async def fetch_async(
    app: Any,
    target: str,
    *,
    method: str = "GET",
    host: str | None = HOST,
    headers: Mapping[str, str] | None = None,
    gone: bool = False,
) -> Reply:
    """One request; the target is as it stands in a request line, percent signs and all."""
    scope = make_scope(target, method=method, host=host, headers=headers)
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        if gone:
            return {"type": "http.disconnect"}
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(message: Any) -> None:
        messages.append(message)

    await app(scope, receive, send)
    start, *rest = messages
    found = {k.decode("latin-1"): v.decode("latin-1") for k, v in start["headers"]}
    return Reply(start["status"], found, b"".join(part.get("body", b"") for part in rest))


def make_scope(
    target: str,
    *,
    method: str = "GET",
    host: str | None = HOST,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The scope of one request; see ``fetch_async``."""
    raw, _, query = target.encode("latin-1").partition(b"?")
    given = {**({} if host is None else {"host": host}), **(headers or {})}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw.decode("latin-1")),
        "raw_path": raw,
        "query_string": query,
        "root_path": "",
        "headers": [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in given.items()],
        "client": ("127.0.0.1", 40_000),
        "server": ("127.0.0.1", 8765),
    }
