"""Which requests are served, and the headers of every response."""

from __future__ import annotations

from typing import Any

import pytest
from asgi_caller import HOST, fetch

from sacmil.viewer.access import GuessLimit

TOKEN = "a-token-of-somebody"


def sign_in(app: Any, host: str = HOST) -> dict[str, str]:
    """The header of a browser that has brought the token."""
    welcome = fetch(app, f"/?token={TOKEN}", host=host)
    return {"cookie": welcome.headers["set-cookie"].partition(";")[0]}


OWN = ["127.0.0.1:8765", "localhost:8765", "LOCALHOST:8765", "[::1]:8765"]
FOREIGN = [
    None,
    "",
    "evil.example",
    "evil.example:8765",
    "127.0.0.1",
    "127.0.0.1:80",
    "127.0.0.1:8766",
    "127.0.0.1:08765x",
    "127.0.0.1:",
    "127.0.0.1:٨٧٦٥".encode().decode("latin-1"),
    "127.0.0.1.evil.example:8765",
    "localhost.evil.example:8765",
    "evil.example@127.0.0.1:8765",
    "127.0.0.1:8765@evil.example",
    "127.0.0.1:8765/evil.example",
    "127.0.0.1:8765, evil.example",
    "127.0.0.1:8765 ",
    "127.0.0.1\0:8765",
    "[::1:8765",
    "::1:8765",
    "[127.0.0.1]:8765:8765",
    "0x7f.1:8765",
    "2130706433:8765",
    "127.1:8765",
    "0.0.0.0:8765",
    "192.168.0.7:8765",
    "a" * 5000 + ":8765",
]


@pytest.mark.parametrize("host", OWN)
def test_on_loopback_its_own_names_are_served(app, host: str) -> None:
    assert fetch(app, "/api/results", host=host).status == 200


@pytest.mark.parametrize("host", FOREIGN)
def test_on_loopback_no_other_name_is_served(app, host: str | None) -> None:
    for target in ("/", "/api/results", "/nowhere"):
        reply = fetch(app, target, host=host)
        assert reply.status == 421
        assert "8765" in reply.json()["error"]


def test_two_host_headers_are_rejected(app) -> None:
    assert fetch(app, "/", host=HOST, headers={"Host": "evil.example"}).status == 421


def test_beyond_loopback_only_the_bound_name_is_served(made, make_app) -> None:
    app = make_app(made, host="192.168.0.7", token=TOKEN)
    cookie = sign_in(app, "192.168.0.7:8765")
    assert fetch(app, "/", host="192.168.0.7:8765", headers=cookie).status == 200
    for host in ("192.168.0.8:8765", "evil.example:8765", "127.0.0.1:8765"):
        assert fetch(app, "/", host=host, headers=cookie).status == 421


def test_on_every_address_addresses_are_served_and_unknown_names_are_not(made, make_app) -> None:
    app = make_app(made, host="0.0.0.0", token=TOKEN)
    cookie = sign_in(app)
    for host in ("192.168.0.8:8765", "127.0.0.1:8765", "[fe80::1]:8765"):
        assert fetch(app, "/", host=host, headers=cookie).status == 200
    assert fetch(app, "/", host="evil.example:8765", headers=cookie).status == 421


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://127.0.0.1:8765",
        "http://127.0.0.1:9999",
        "null",
        "",
        "http://127.0.0.1:8765.evil.example",
        "http://",
    ],
)
def test_pages_of_other_sites_get_nothing(app, origin: str) -> None:
    navigation = {"origin": origin, "sec-fetch-mode": "navigate"}
    for headers in ({"origin": origin}, navigation):
        assert fetch(app, "/api/results", headers=headers).status == 403


def test_our_own_page_is_served(app) -> None:
    headers = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
    assert fetch(app, "/api/results", headers=headers).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_embedding_by_another_site_is_rejected_and_a_link_is_followed(app, site: str) -> None:
    embedded = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}
    assert fetch(app, "/api/slides/0/tiles/8/0_0.jpg", headers=embedded).status == 403
    link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    assert fetch(app, "/", headers=link).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "X"])
def test_nothing_but_get_and_head(app, method: str) -> None:
    reply = fetch(app, "/api/results", method=method)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


def test_a_long_url_is_rejected(app) -> None:
    for target in ("/" + "a" * 5000, "/?" + "a" * 5000, "/" + "%41" * 5000):
        assert fetch(app, target).status == 414


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("/", {}),
        ("/api/results", {}),
        ("/api/slides/0/tiles/8/0_0.jpg", {}),
        ("/nowhere", {}),
        ("/", {"method": "POST"}),
        ("/", {"host": "evil.example"}),
    ],
)
def test_every_response_has_strict_security_headers(app, target: str, options: dict) -> None:
    headers = fetch(app, target, **options).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "img-src 'self' data: blob:" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] in ("no-store", "private, no-cache")


# The token.


@pytest.fixture
def guarded(made, make_app):
    return make_app(made, token=TOKEN)


WRONG = ["", "a", TOKEN[:-1], TOKEN + "a", TOKEN.upper(), "%00", "%F0%9F%94%91", "%ED%A0%80", "%"]


@pytest.mark.parametrize("given", [None, *WRONG])
def test_without_the_token_nothing_is_served(guarded, given: str | None) -> None:
    for target in ("/", "/api/results", "/nowhere", "/assets/a.js"):
        reply = fetch(guarded, target if given is None else f"{target}?token={given}")
        assert reply.status == 401
        assert "set-cookie" not in reply.headers
        assert TOKEN not in reply.body.decode()


@pytest.mark.parametrize("cookie", [*WRONG, "\xff\xfe", '"'])
def test_a_wrong_cookie_opens_nothing(guarded, cookie: str) -> None:
    headers = {"cookie": f"sacmil_view_8765={cookie}"}
    assert fetch(guarded, "/", headers=headers).status == 401


def test_the_token_is_brought_once_and_kept_in_a_cookie(guarded) -> None:
    first = fetch(guarded, f"/?token={TOKEN}&a=b")
    assert (first.status, first.headers["location"]) == (303, "/?a=b")
    cookie = first.headers["set-cookie"]
    assert "httponly" in cookie.lower()
    assert "samesite=strict" in cookie.lower()
    pair = cookie.partition(";")[0]
    others = {"cookie": f"other=x{{y; {pair}; more"}  # of other servers on this machine
    assert fetch(guarded, "/api/results", headers=others).status == 200


@pytest.mark.parametrize("path", ["//evil.example", "/%5Cevil.example", "///evil.example/%2e%2e"])
def test_the_redirect_after_sign_in_stays_on_this_host(guarded, path: str) -> None:
    location = fetch(guarded, f"{path}?token={TOKEN}").headers["location"]
    assert location.startswith("/evil.example")


def test_a_wrong_token_beside_the_right_cookie_is_rejected(guarded) -> None:
    assert fetch(guarded, "/?token=wrong", headers=sign_in(guarded)).status == 401


def test_the_cookie_does_not_hold_the_token_and_the_token_is_no_cookie(guarded) -> None:
    assert TOKEN not in sign_in(guarded)["cookie"]
    headers = {"cookie": f"sacmil_view_8765={TOKEN}"}
    assert fetch(guarded, "/", headers=headers).status == 401


def test_after_ten_wrong_tokens_none_is_checked_and_signed_in_clients_stay(guarded) -> None:
    headers = sign_in(guarded)
    guesses = [fetch(guarded, f"/?token=guess-{n}") for n in range(12)]
    assert [reply.status for reply in guesses] == [401] * 10 + [429] * 2
    rejected = fetch(guarded, f"/?token={TOKEN}")
    assert (rejected.status, rejected.headers["retry-after"]) == (429, "60")
    assert "set-cookie" not in rejected.headers
    assert fetch(guarded, "/api/results", headers=headers).status == 200


def test_wrong_tokens_are_counted_by_client_and_in_total_each_minute() -> None:
    now = [0.0]
    limit = GuessLimit(lambda: now[0])
    clients = [f"client-{number}" for number in range(50)]
    counted = 0
    for client in clients:
        while limit.is_allowed(client):
            limit.count_wrong_token(client)
            counted += 1
    assert counted == 200
    assert not limit.is_allowed("another")
    now[0] = 61.0
    assert all(map(limit.is_allowed, clients))


def test_a_token_does_not_make_other_names_right(guarded) -> None:
    assert fetch(guarded, f"/?token={TOKEN}", host="evil.example").status == 421
