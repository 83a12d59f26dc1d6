"""What every request must pass before the app sees it, and what every answer carries."""

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
    """Lets through GET and HEAD under the server's own name, from its own page, with its token.

    Args:
        app: behind the gate.
        hosts: names of the server.
        token: what a browser must bring once, as ?token=…; None for everybody on this machine.
    """

    def __init__(self, app: ASGIApp, hosts: AllowedHosts, token: str | None = None) -> None:
        self._app = app
        self._hosts = hosts
        self._token = token
        self._cookie = f"sacmil_view_{hosts.port}"  # browsers do not tell ports apart
        # not the token: that may be short, and cookies may be tried as often as one likes
        self._session = secrets.token_urlsafe()
        self._guesses = GuessLimit()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
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

        answer = self._reject_request(scope) or self._authenticate(scope)
        await (answer or self._app)(scope, receive, send_on)

    def _reject_request(self, scope: Scope) -> Response | None:
        """Why no one may ask this, or may ask it this way."""
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return make_error_response(
                405, "only GET and HEAD are answered", {"Allow": "GET, HEAD"}
            )
        address = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
        if address > _MAX_URL_BYTES:
            return make_error_response(414, f"the address is longer than {_MAX_URL_BYTES:,} bytes")
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._hosts.is_allowed(hosts[0]):
            return make_error_response(
                421,
                "the viewer does not answer under this name and port; open it at the address that "
                f"sacmil view printed, with port {self._hosts.port} also through a tunnel",
            )
        if not (self._is_same_origin(headers) or _is_navigation(headers)):
            return make_error_response(403, "pages of other sites are not answered")
        return None

    def _is_same_origin(self, headers: Headers) -> bool:
        """Whether the page that asks, if one does, is ours."""
        origins = headers.getlist("origin")
        own = all(
            origin.startswith("http://") and self._hosts.is_allowed(origin.removeprefix("http://"))
            for origin in origins
        )
        return own and headers.get("sec-fetch-site", "none") in ("same-origin", "none")

    def _authenticate(self, scope: Scope) -> Response | None:
        """What one without the token gets; who brings it in the address gets a cookie for it."""
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
        """What one gets who brings a wrong token, or has brought too many."""
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
        # one slash only: // would begin another host's name
        place = "/" + quote(path.lstrip("/\\"), errors="replace") + (f"?{query}" if query else "")
        answer = Response(status_code=303, headers={"Location": place})
        answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
        return answer


def _is_equal_secret(given: str, expected: str) -> bool:
    """Takes as long for any wrong value."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def _is_navigation(headers: Headers) -> bool:
    """Whether somebody followed a link to us, which shows nothing to the page it stood on."""
    return headers.get("sec-fetch-mode") == "navigate" and "origin" not in headers


def _make_token_error() -> Response:
    return make_error_response(
        401, "a token is needed: open the address that sacmil view printed, with its ?token=…"
    )
