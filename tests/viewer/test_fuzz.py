"""Thousands of nasty requests: never a 500, never a byte from outside the folder."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from asgi_caller import HOST, Reply, fetch_async

CANARY = b"canary-that-must-not-sing"
SEGMENTS = [
    *("api", "slides", "results", "tiles", "thumbnail", "truth", "scores", "assets", "static"),
    *("0", "1", "4", "5", "8", "11", "-1", "00", "1e3", "0x1", "9" * 9, "9" * 400, "٣", "NaN"),
    *("0_0.jpg", "1_2.jpg", "-1_0.jpg", "0_0.jpeg", "9_9.jpg", "0_0.jpg.", "_.jpg", "0_0"),
    *("..", ".", "...", "....", "..;", "%2e%2e", "%2E.", "%252e%252e", "%u002e", "%c0%ae%c0%ae"),
    *("%2f", "%5c", "\\", "..\\..", "%00", "%0d%0a", "%0a", "%ff", "%", "%zz", "\xff", "‥", "／"),
    *("canary.txt", "canary.npz", "outside", "results.json", "index.html", "a.js", "etc", "passwd"),
    *("C:", "file:", "~", "$HOME", "*", "{n}", "{path:path}", "<script>", "'", '"', "a" * 1500),
]
HOSTS = [
    *("127.0.0.1", "localhost", "[::1]", "evil.example", "0.0.0.0", "127.0.0.1.evil.example"),
    *(
        "",
        "[",
        "]",
        "[]",
        "[::1",
        "::1",
        "@",
        "a@b",
        "127.0.0.1\x00",
        "\xff",
        "ｌocalhost",
        "-",
        ".",
    ),
    *("localhost.", "127.1", "2130706433", "a" * 400, "127.0.0.1 ", " 127.0.0.1", "127.0.0.1,x"),
]
PORTS = [
    "",
    ":8765",
    ":8765",
    ":80",
    ":",
    ":0",
    ":65536",
    ":-1",
    ":8765:8765",
    ":８７６５",
    ":8765/",
]


@pytest.mark.parametrize("count", [2000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_nasty_requests_get_nothing_from_outside(folder, make_app, count: int) -> None:
    _plant_canaries(folder)
    static = folder.parent / "static"
    (static / "assets").mkdir(parents=True)
    (static / "index.html").write_text("page")
    (static / "assets/a.js").write_text("1")
    (static / "assets/link.js").symlink_to(folder.parent / "nowhere")
    app = make_app(folder, static=static)
    replies = asyncio.run(_all(app, _requests(count)))
    statuses = Counter(reply.status for reply in replies)
    assert set(statuses) <= {200, 303, 403, 404, 405, 414, 421, 422}, statuses
    assert min(statuses[status] for status in (200, 404, 421)) > 0.03 * count, statuses
    for reply in replies:
        assert CANARY not in reply.body
        assert CANARY not in repr(reply.headers).encode()
        if reply.status >= 400 and reply.body:
            assert set(reply.json()) == {"error"}


def _plant_canaries(folder: Any) -> None:
    """A secret beside the folder, and every way results.json could try to lead to it."""
    outside = folder.parent / "outside"
    outside.mkdir()
    for name in ("canary.txt", "canary.npz", "canary.geojson"):
        (outside / name).write_bytes(json.dumps({"type": CANARY.decode()}).encode())
    (folder / "escape").symlink_to(outside)
    shutil.rmtree(folder / "thumbnails")
    (folder / "thumbnails").symlink_to(outside)
    whole = json.loads((folder / "results.json").read_text())
    slides = whole["slides"]
    slides[0]["truth"] = "escape/canary.geojson"
    slides[1]["slide"] = str(outside / "canary.txt")
    slides[2]["slide"] = "../outside/canary.txt"
    slides[3]["answers"][0]["scores"] = "escape/canary.npz"
    slides[4]["thumbnail"] = "thumbnails/canary.txt"
    (folder / "results.json").write_text(json.dumps(whole))


def _requests(count: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(0)
    for _ in range(count):
        request: dict[str, Any] = {"target": _target(rng), "host": HOST}
        if rng.random() < 0.25:
            request["host"] = _wire(rng.choice(HOSTS) + rng.choice(PORTS))
        if rng.random() < 0.05:
            request["method"] = rng.choice(["HEAD", "POST", "OPTIONS", "get", "\xff"])
        if rng.random() < 0.1:
            name = rng.choice(["origin", "cookie", "if-none-match", "accept-encoding", "range"])
            request["headers"] = {name: _wire(rng.choice(SEGMENTS + HOSTS))}
        yield request


def _target(rng: random.Random) -> str:
    """Half of them near addresses that exist, with a segment or two replaced."""
    if rng.random() < 0.5:
        likely = rng.choice(
            [
                "/api/results",
                "/api/slides/0",
                "/api/slides/0/tiles/8/0_0.jpg",
                "/api/slides/4/thumbnail",
                "/api/slides/0/truth",
                "/api/slides/3/scores/0",
                "/assets/a.js",
                "/",
            ]
        ).split("/")
        for _ in range(rng.choice([0, 1, 1, 2])):
            likely[rng.randrange(len(likely))] = rng.choice(SEGMENTS)
        path = "/".join(likely)
    else:
        path = "".join(
            rng.choice(["/", "/", "//", "", "\\", "%2f"]) + rng.choice(SEGMENTS)
            for _ in range(rng.randrange(7))
        )
    query = rng.choice(
        ["", "", "", "?", "?token=a", "?path=../outside/canary.txt", "?%00", "?a=b&&"]
    )
    return _wire(path + query)


def _wire(text: str) -> str:
    return text.encode().decode("latin-1")


async def _all(app: Any, requests: Iterator[dict[str, Any]]) -> list[Reply]:
    return [await fetch_async(app, request.pop("target"), **request) for request in requests]
