"""Checks every request before the app serves it: host, origin, token; adds headers to responses.

A page of another site can make a browser send requests to 127.0.0.1, also under its own name if
that name resolves there (DNS rebinding). The Host header reveals such requests.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sacmil.viewer.responses import make_error_response

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MAX_WRONG_PER_CLIENT = 10
_MAX_WRONG_TOTAL = 200
_WINDOW_S = 60.0
_MAX_URL_BYTES = 4096
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True)
class AllowedHosts:
    """The host names and port of a server.

    Args:
        names: in lower case; addresses without brackets.
        port: the port it listens on.
        any_address: whether every IP address is allowed, as for a server that listens on all of
            them. Unlike a name, an address cannot be made to resolve to this machine.
    """

    names: frozenset[str]
    port: int
    any_address: bool = False

    @classmethod
    def from_address(cls, host: str, port: int) -> AllowedHosts:
        """Return the names of a server that is bound to a host."""
        names = {host.lower()}
        if is_loopback(host):
            names |= {*_LOOPBACK}
        elif is_unspecified(host):
            own = (socket.gethostname(), socket.getfqdn())
            names = {*_LOOPBACK, *(name.lower() for name in own)}
        return cls(frozenset(names), port, any_address=is_unspecified(host))

    def is_allowed(self, header: str) -> bool:
        """Whether a Host header, or the text after http:// in an Origin, names this server."""
        found = _HOST.fullmatch(header)
        if found is None or int(found[2] or 80) != self.port:
            return False
        name = found[1].strip("[]").lower()
        return name in self.names or (self.any_address and _parse_address(name) is not None)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    address = _parse_address(host)
    return address.is_loopback if address else host.lower() == "localhost"


def is_unspecified(host: str) -> bool:
    """Whether a host stands for every address of this machine."""
    address = _parse_address(host)
    return address is not None and address.is_unspecified


def _parse_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


class GuessLimit:
    """Counts wrong tokens by client, and resets the counts every minute.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = float("-inf")
        self._wrong: Counter[str] = Counter()  # at most _MAX_WRONG_TOTAL entries

    def is_allowed(self, client: str) -> bool:
        """Whether a token of this client may be checked."""
        if self._clock() >= self._end:
            self._end = self._clock() + _WINDOW_S
            self._wrong.clear()
        return (
            self._wrong[client] < _MAX_WRONG_PER_CLIENT and self._wrong.total() < _MAX_WRONG_TOTAL
        )

    def count_wrong_token(self, client: str) -> None:
        """Count a wrong token of a client."""
        self._wrong[client] += 1


class AccessMiddleware:
    """Accepts GET and HEAD under the server's own name, from its own page, with its token.

    Args:
        app: serves the accepted requests.
        hosts: names of the server.
        token: that a browser must send once, as ?token=…; None if no token is needed.
    """

    def __init__(self, app: ASGIApp, hosts: AllowedHosts, token: str | None = None) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token
        self._cookie = f"sacmil_view_{hosts.port}"  # browsers share cookies between ports
        # not the token: it may be short, and the number of wrong cookies is not limited
        self._session = secrets.token_urlsafe()
        self._guesses = GuessLimit()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            elif scope["method"] == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        rejection = self._reject_request(scope) or self._authenticate(scope)
        await (rejection or self._app)(scope, receive, send_on)

    def _reject_request(self, scope: Scope) -> Response | None:
        """Return an error for a request that is never allowed; None if it is valid."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return make_error_response(405, "only GET and HEAD are allowed", {"Allow": "GET, HEAD"})
        length = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
        if length > _MAX_URL_BYTES:
            return make_error_response(414, f"the URL is longer than {_MAX_URL_BYTES:,} bytes")
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._hosts.is_allowed(hosts[0]):
            return make_error_response(
                421,
                "the viewer does not accept requests for this host and port; open the address that "
                f"sacmil view printed, and use port {self._hosts.port} also through a tunnel",
            )
        if not (self._is_same_origin(headers) or _is_navigation(headers)):
            return make_error_response(403, "requests from pages of other sites are not allowed")
        return None

    def _is_same_origin(self, headers: Headers) -> bool:
        """Whether the request comes from our own page or from no page."""
        origins = headers.getlist("origin")
        own = all(
            origin.startswith("http://") and self._hosts.is_allowed(origin.removeprefix("http://"))
            for origin in origins
        )
        return own and headers.get("sec-fetch-site", "none") in ("same-origin", "none")

    def _authenticate(self, scope: Scope) -> Response | None:
        """Return an error without the token, a redirect with a cookie for it, or None."""
        if self._token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given:
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            return self._check_token(scope, given[-1]) or self._redirect_with_cookie(
                scope["path"], rest
            )
        cookie = Request(scope).cookies.get(self._cookie, "")
        return None if _is_equal_secret(cookie, self._session) else _make_token_error()

    def _check_token(self, scope: Scope, given: str) -> Response | None:
        """Return an error for a wrong token or after too many of them; None for the right one."""
        client = (scope.get("client") or ("",))[0]
        if not self._guesses.is_allowed(client):
            return make_error_response(
                429,
                "too many wrong tokens were given; wait a minute, then open the address that "
                "sacmil view printed",
                {"Retry-After": "60"},
            )
        if _is_equal_secret(given, self._token or ""):
            return None
        self._guesses.count_wrong_token(client)
        return _make_token_error()

    def _redirect_with_cookie(self, path: str, query: str) -> Response:
        # one slash only: // would start another host's name
        target = "/" + quote(path.lstrip("/\\"), errors="replace") + (f"?{query}" if query else "")
        response = Response(status_code=303, headers={"Location": target})
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
        return response


def _is_equal_secret(given: str, expected: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def _is_navigation(headers: Headers) -> bool:
    """Whether the user followed a link; the page with the link cannot read the response."""
    return headers.get("sec-fetch-mode") == "navigate" and "origin" not in headers


def _make_token_error() -> Response:
    return make_error_response(
        401, "a token is needed: open the address that sacmil view printed, with its ?token=…"
    )
