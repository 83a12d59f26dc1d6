"""Binds an address, and serves the viewer there until it is interrupted."""

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
from sacmil.viewer.connections import BoundedApp, Connections, Limits, find_limits, make_protocol
from sacmil.viewer.content import ResultsApi
from sacmil.viewer.log_limit import limit_log

_TOKEN = re.compile(r"[A-Za-z0-9._~-]{8,200}")
_BACKLOG = 2048
"""Connections the system holds ready for us."""
_ACCEPTED_AT_ONCE = 100
"""Each takes a descriptor before those that give way have let go of theirs."""
_MOST_HEADER_BYTES = 32_768
_SEND_BUFFER_BYTES = 2**18
_PATIENCE_S = 2


@dataclass(frozen=True)
class Server:
    """A bound address with the app that answers there."""

    app: ASGIApp
    listener: socket.socket
    url: str
    """What to open, with the token if there is one."""

    def run(self) -> None:
        """Serve until Ctrl-C."""
        limit_log()
        try:
            make_http_server(self.app, find_limits()).run(sockets=[self.listener])
        except KeyboardInterrupt:  # raised anew by uvicorn once all is closed
            pass
        finally:
            self.listener.close()


def make_http_server(app: ASGIApp, limits: Limits) -> uvicorn.Server:
    """A server that serves an app within limits, not yet running."""
    connections = Connections(limits)
    config = uvicorn.Config(
        BoundedApp(app, connections),
        http=make_protocol(connections),
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_ACCEPTED_AT_ONCE,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
        timeout_graceful_shutdown=_PATIENCE_S,
    )
    return _PatientServer(config)


class _PatientServer(uvicorn.Server):
    """Accepts few connections at a time and leaves many in the system's queue."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_BACKLOG)


def bind(
    content: ResultsApi,
    host: str,
    port: int,
    token: str | None = None,
    make_token: Callable[[], str] = secrets.token_urlsafe,
) -> Server:
    """A server on an address, not yet running.

    Args:
        content: what it shows.
        host: beyond this machine's own addresses a token is needed.
        port: 0 for any that is free.
        token: what a browser must bring; made where one is needed and none is given.
        make_token: by lot.
    """
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigError(
            "the token must have 8 to 200 letters, digits or any of . _ ~ -; leave --token out "
            "to have one made"
        )
    if token is None and not is_loopback(host):
        token = make_token()
    listener = _open_listener(host, port)
    port = listener.getsockname()[1]
    app = create_app(content, AllowedHosts.from_address(host, port), token=token)
    return Server(app, listener, _make_url(host, port, token))


def _open_listener(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"the host {host!r} is not known ({error}); expected 127.0.0.1, or an address of this "
            "machine"
        ) from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # connections inherit it: the system would take megabytes for a client that does not read
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        other = port + 1 if 0 < port < 65_535 else 8765
        raise SacMILError(
            f"port {port} of {host} cannot be used ({error.strerror}); type --port {other}, or "
            "--port 0 for one that is free"
        ) from error
    return listener


def _make_url(host: str, port: int, token: str | None) -> str:
    name = socket.gethostname() if is_unspecified(host) else host
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")
