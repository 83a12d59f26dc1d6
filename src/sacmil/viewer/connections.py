"""Limits how many connections clients hold, and how long each may keep the server waiting.

A client that sends no request, or does not read the response, costs a descriptor and memory. It may
share its address with an honest user, so it cannot be blocked by address. Instead, every connection
that waits for its client has a deadline. If there are too many, the longest waiting is dropped.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

Address = tuple[str, int]
"""Host and port of the client, which identify a connection."""

_MAX_CONNECTIONS = 2048
_MAX_DESCRIPTORS = 16_384
_OTHER_DESCRIPTORS = 256
"""For the process itself: files, pipes to the slide readers, connections just accepted."""
_CHUNK_BYTES = 2**16


class ConnectionLimits(NamedTuple):
    """Limits on the connections of clients."""

    max_connections: int
    """Connections from all hosts."""
    max_per_client: int
    """Connections from one host."""
    request_timeout_s: float = 5.0
    """Seconds for a whole request, counted from the connection or from the last response."""
    read_timeout_s: float = 20.0
    """Seconds in which a client must read the next 64 KiB of a response."""
    max_unsent_bytes: int = 256 * 2**20
    """Of all bodies not yet read by clients; one that several clients share counts once."""


def find_limits() -> ConnectionLimits:
    """Return limits well below the number of descriptors, which is raised if possible."""
    max_connections = min(_MAX_CONNECTIONS, (_raise_descriptor_limit() - _OTHER_DESCRIPTORS) // 2)
    return ConnectionLimits(max(max_connections, 16), max(max_connections * 3 // 4, 12))


def _raise_descriptor_limit() -> int:
    if sys.platform == "win32":
        return _MAX_DESCRIPTORS
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS has a second, lower limit
        return soft
    return wanted


@dataclass(eq=False)
class _Connection:
    transport: asyncio.Transport
    timer: asyncio.TimerHandle | None = None
    body: bytes = b""
    """The body in memory of the response being sent."""


class Connections:
    """The open connections of a server; for its event loop's thread only."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: dict[Address, _Connection] = {}
        self._waiting: dict[Address, None] = {}  # for their clients, the longest waiting first

    @property
    def held_bytes(self) -> int:
        """Size of all bodies that are being sent; one that several clients share counts once."""
        bodies = {id(each.body): len(each.body) for each in self._open.values()}
        return sum(bodies.values())

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, address: Address) -> bool:
        return address in self._open

    def add(self, address: Address, transport: asyncio.Transport) -> None:
        """Add a new connection; if there are too many, drop the one waiting longest."""
        self._open[address] = _Connection(transport)
        self.start_deadline(address, self.limits.request_timeout_s)
        if sum(each[0] == address[0] for each in self._open) > self.limits.max_per_client:
            self._drop_first(each for each in self._waiting if each[0] == address[0])
        elif len(self._open) > self.limits.max_connections:
            self._drop_first(self._waiting)

    def discard(self, address: Address, transport: asyncio.Transport) -> None:
        """Remove a connection that has ended; its address may have been reused since."""
        connection = self._open.get(address)
        if connection is not None and connection.transport is transport:
            self.mark_busy(address)
            del self._open[address]

    def start_deadline(self, address: Address, seconds: float) -> None:
        """Start waiting for the client: it must act in time, and may be dropped before."""
        self.mark_busy(address)
        connection = self._open.get(address)
        if connection is not None:
            self._waiting[address] = None
            loop = asyncio.get_running_loop()
            connection.timer = loop.call_later(seconds, self._drop, address)

    def mark_busy(self, address: Address) -> None:
        """Stop waiting for the client: while the server works, the connection is not dropped."""
        self._waiting.pop(address, None)
        connection = self._open.get(address)
        if connection is not None and connection.timer is not None:
            connection.timer.cancel()
            connection.timer = None

    def end_request(self, address: Address) -> None:
        """Wait for the next request, and for the client to read the rest of the last response."""
        connection = self._open.get(address)
        if connection is not None:
            connection.body = b""
            is_sent = connection.transport.get_write_buffer_size() == 0
            seconds = self.limits.request_timeout_s if is_sent else self.limits.read_timeout_s
            self.start_deadline(address, seconds)

    def hold_body(self, address: Address, body: bytes) -> None:
        """Count a response's body until its request ends; drop clients if the sum is too large.

        Args:
            address: of the connection it is sent on.
            body: the object in memory, which other connections may be sending too.
        """
        connection = self._open.get(address)
        if connection is None or connection.body is body:
            return
        connection.body = body
        while self.held_bytes > self.limits.max_unsent_bytes:
            if not self._drop_first(each for each in self._waiting if self._open[each].body):
                break

    def _drop_first(self, addresses: Iterable[Address]) -> bool:
        address = next(iter(addresses), None)
        if address is not None:
            self._drop(address)
        return address is not None

    def _drop(self, address: Address) -> None:
        transport = self._open[address].transport
        transport.abort()
        self.discard(address, transport)


class BoundedApp:
    """Forwards requests, and tracks whether a connection waits for its client or the server.

    Args:
        app: serves the requests.
        connections: of the server that calls this.
    """

    def __init__(self, app: ASGIApp, connections: Connections) -> None:
        self._app = app
        self._connections = connections
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not scope["client"]:
            await self._app(scope, receive, send)
            return
        host, port = scope["client"]

        async def send_in_chunks(message: Message) -> None:
            await self._send((host, port), message, send)

        self._connections.mark_busy((host, port))
        try:
            await self._app(scope, receive, send_in_chunks)
        except asyncio.CancelledError:
            pass  # the server stops; raised, it would be logged with a traceback for each request
        finally:
            self._connections.end_request((host, port))

    async def _send(self, address: Address, message: Message, send: Send) -> None:
        """Send in chunks: before the next, the server waits until most of the last is read."""
        body = message.get("body", b"")
        try:
            for start in range(0, max(len(body), 1), _CHUNK_BYTES):
                if _is_large(message):
                    await self._wait_for_turn()
                if address not in self._connections:
                    break
                self._connections.start_deadline(address, self._connections.limits.read_timeout_s)
                self._connections.hold_body(address, message.get("source", body))
                await send(_cut_message(message, start))
        finally:
            self._connections.mark_busy(address)

    async def _wait_for_turn(self) -> None:
        """Let only one chunk of all large responses into each round of the event loop.

        Otherwise a round takes as long as a chunk of every large response, and a small one needs
        several rounds.
        """
        async with self._turn:
            await asyncio.sleep(0)


def _is_large(message: Message) -> bool:
    """Whether sending it, or unpacking the rest of the body, takes time."""
    is_long = len(message.get("body", b"")) > _CHUNK_BYTES
    return is_long or "source" in message or message.get("more_body", False)


def _cut_message(message: Message, start: int) -> MutableMapping[str, Any]:
    body = message.get("body", b"")
    if len(body) <= _CHUNK_BYTES:
        return message
    end = start + _CHUNK_BYTES
    more = end < len(body) or message.get("more_body", False)
    return {**message, "body": body[start:end], "more_body": more}


def make_protocol(connections: Connections) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP/1.1 protocol, which also registers every connection."""

    class BoundedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            connections.add(_get_address(transport), transport)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.discard(_get_address(self.transport), self.transport)
            super().connection_lost(exc)

    return BoundedProtocol


def _get_address(transport: asyncio.Transport) -> Address:
    host, port, *_ = transport.get_extra_info("peername")
    return host, port
