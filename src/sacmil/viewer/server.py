"""Binds an address and serves the viewer there until it is interrupted."""

from __future__ import annotations

import logging
import re
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from sacmil.errors import ConfigError, SacMILError
from sacmil.viewer.access import AllowedHosts, is_loopback, is_unspecified
from sacmil.viewer.app import create_app
from sacmil.viewer.connections import (
    BoundedApp,
    ConnectionLimits,
    Connections,
    find_limits,
    make_protocol,
)
from sacmil.viewer.content import ResultsApi

_TOKEN = re.compile(r"[A-Za-z0-9._~-]{8,200}")
_BACKLOG = 2048
"""Connections that the system queues for the server."""
_ACCEPT_BATCH_SIZE = 100
"""Each needs a descriptor before dropped connections have released theirs."""
_MAX_HEADER_BYTES = 32_768
_SEND_BUFFER_BYTES = 2**18
_SHUTDOWN_TIMEOUT_S = 2
_LOGGERS = ("asyncio", "uvicorn.error")
_MAX_LOG_RECORDS = 20
_LOG_WINDOW_S = 60.0


@dataclass(frozen=True)
class Server:
    """A bound address with the app that it serves."""

    app: ASGIApp
    listener: socket.socket
    url: str
    """The URL to open, with the token if there is one."""

    def run(self) -> None:
        """Serve until Ctrl-C."""
        log_limit = LogLimit()
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(log_limit)
        try:
            make_http_server(self.app, find_limits()).run(sockets=[self.listener])
        except KeyboardInterrupt:  # raised again by uvicorn after the shutdown
            pass
        finally:
            self.listener.close()


class LogLimit(logging.Filter):
    """Passes a number of records in each time window, and counts the others.

    Anyone who can connect can cause log lines.

    Args:
        max_records: in each window.
        window_s: its length in seconds.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        max_records: int = _MAX_LOG_RECORDS,
        window_s: float = _LOG_WINDOW_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._max_records, self._window_s, self._clock = max_records, window_s, clock
        self._end = float("-inf")
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written; the first of a window states how many were left out."""
        left_out = 0
        if self._clock() >= self._end:
            left_out = max(self._count - self._max_records, 0)
            self._end, self._count = self._clock() + self._window_s, 0
        self._count += 1
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out:,} more left out)", None
        return self._count <= self._max_records


def make_http_server(app: ASGIApp, limits: ConnectionLimits) -> uvicorn.Server:
    """Return a server for an app within limits, not yet running."""
    connections = Connections(limits)
    config = uvicorn.Config(
        BoundedApp(app, connections),
        http=make_protocol(connections),
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_ACCEPT_BATCH_SIZE,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
    )
    return _BacklogServer(config)


class _BacklogServer(uvicorn.Server):
    """Accepts few connections at a time and leaves many in the system's queue."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)


def bind_server(api: ResultsApi, host: str, port: int, token: str | None = None) -> Server:
    """Bind an address and return its server, not yet running.

    Args:
        api: the results to show.
        host: to listen on; if other machines can reach it, a token is needed.
        port: 0 for any free one.
        token: that a browser must send; made if one is needed and none is given.
    """
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigError(
            "the token must have 8 to 200 letters, digits or any of . _ ~ -; leave `token` "
            "out for a random one"
        )
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe()
    listener = _open_listener(host, port)
    port = listener.getsockname()[1]
    app = create_app(api, AllowedHosts.from_address(host, port), token=token)
    return Server(app, listener, _make_url(host, port, token))


def _open_listener(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"the host {host!r} is unknown ({error}); expected 127.0.0.1 or another address of "
            "this machine"
        ) from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # connections inherit it: the default is megabytes for a client that does not read
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        other = port + 1 if 0 < port < 65_535 else 8765
        raise SacMILError(
            f"port {port} of {host} cannot be used ({error.strerror}); use `port={other}`, or "
            "`port=0` for any free port"
        ) from error
    return listener


def _make_url(host: str, port: int, token: str | None) -> str:
    name = socket.gethostname() if is_unspecified(host) else host
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")
