"""Binds an address and serves the viewer there until it is interrupted."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from sacmil.errors import ConfigError, SacMILError
from sacmil.viewer.allowed_hosts import AllowedHosts, is_loopback, is_unspecified
from sacmil.viewer.app import create_app
from sacmil.viewer.connections import (
    BoundedApp,
    ConnectionLimits,
    Connections,
    find_limits,
    make_protocol,
)
from sacmil.viewer.content import ResultsApi
from sacmil.viewer.log_limit import limit_log

_TOKEN = re.compile(r"[A-Za-z0-9._~-]{8,200}")
_BACKLOG = 2048
"""Connections that the system queues for the server."""
_ACCEPT_BATCH_SIZE = 100
"""Each needs a descriptor before dropped connections have released theirs."""
_MAX_HEADER_BYTES = 32_768
_SEND_BUFFER_BYTES = 2**18
_SHUTDOWN_TIMEOUT_S = 2


@dataclass(frozen=True)
class Server:
    """A bound address with the app that it serves."""

    app: ASGIApp
    listener: socket.socket
    url: str
    """The URL to open, with the token if there is one."""

    def run(self) -> None:
        """Serve until Ctrl-C."""
        limit_log()
        try:
            make_http_server(self.app, find_limits()).run(sockets=[self.listener])
        except KeyboardInterrupt:  # raised again by uvicorn after the shutdown
            pass
        finally:
            self.listener.close()


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


def bind_server(
    api: ResultsApi,
    host: str,
    port: int,
    token: str | None = None,
    make_token: Callable[[], str] = secrets.token_urlsafe,
) -> Server:
    """Bind an address and return its server, not yet running.

    Args:
        api: the results to show.
        host: to listen on; if other machines can reach it, a token is needed.
        port: 0 for any free one.
        token: that a browser must send; made if one is needed and none is given.
        make_token: returns a random token.
    """
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigError(
            "the token must have 8 to 200 letters, digits or any of . _ ~ -; leave `token` "
            "out for a random one"
        )
    if token is None and not is_loopback(host):
        token = make_token()
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
