"""Checks every request before the app serves it, and adds headers to every response."""

from __future__ import annotations

import hmac
import secrets
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sacmil.viewer.allowed_hosts import AllowedHosts
from sacmil.viewer.error_responses import make_error_response
from sacmil.viewer.guess_limit import GuessLimit

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_MAX_URL_BYTES = 4096


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
