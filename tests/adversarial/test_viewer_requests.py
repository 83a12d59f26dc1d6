"""Fuzzed requests to the real server, byte by byte: it stays up and never fails inside."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from results_maker import make_results

VALID = (
    *("/api/results", "/api/slides/0", "/api/slides/0/tiles/8/0_0.jpg", "/api/slides/4/thumbnail"),
    *("/api/slides/0/truth", "/api/slides/3/scores/0", "/"),
)
PIECES = (
    *(b"\r\n", b"\n", b"\0", b"\xff" * 9, b"Content-Length: 99999999999999999999\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: -1\r\n", b"Expect: 100-continue\r\n"),
    *(b"Upgrade: websocket\r\nConnection: Upgrade\r\n", b"Range: bytes=0-,5-1\r\n", b"Host: x\r\n"),
    *(
        b"Cookie: " + b"a=b; " * 2000 + b"\r\n",
        b"X" * 70_000,
        b"%00",
        b"../",
        b"?token=",
        b"HTTP/9",
    ),
)
SERVE = """
import sys
from pathlib import Path
from sacmil.viewer.content import ResultsApi
from sacmil.viewer.server import bind_server
server = bind_server(ResultsApi(Path(sys.argv[1])), "127.0.0.1", 0)
print(server.url, flush=True)
server.run()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    folder = make_results(tmp_path / "results")
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        yield int(process.stdout.readline().rpartition(":")[2].strip(" /\n")), process
        process.kill()


def make_request(random: Random, port: int) -> bytes:
    """A valid request in which a few bytes or lines are changed."""
    path, method = (
        random.choice(VALID),
        random.choice(["GET", "GET", "GET", "HEAD", "POST", "\xff"]),
    )
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    data = bytearray(head.encode("latin-1"))
    for _ in range(random.choice([0, 0, 1, 1, 2, 5])):
        place = random.randrange(len(data))
        if random.random() < 0.5:
            data[place : place + random.choice([0, 1, 8])] = random.choice(PIECES)
        else:
            data[place] = random.randrange(256)
    return bytes(data[: random.choice([len(data)] * 9 + [random.randrange(len(data))])])


def send(port: int, data: bytes) -> str:
    """The status of the reply; "none" where the server closes or waits for more."""
    is_whole = b"\r\n\r\n" in data
    with socket.create_connection(
        ("127.0.0.1", port), timeout=10 if is_whole else 0.05
    ) as connection:
        reply = b""
        with contextlib.suppress(OSError):
            connection.sendall(data)
            while len(reply) < 12 and (chunk := connection.recv(4096)):
                reply += chunk
    return reply[9:12].decode("latin-1") if reply.startswith(b"HTTP/1.1 ") else "none"


@pytest.mark.parametrize("count", [100, pytest.param(3000, marks=pytest.mark.slow)])
def test_fuzzed_requests_never_fail_inside_the_server(server, count: int) -> None:
    port, process = server
    statuses: Counter[str] = Counter()
    for seed in range(count):
        status = send(port, make_request(Random(seed), port))
        assert status[0] != "5" or status == "503", f"seed {seed}: status {status}"
        statuses[status] += 1
    assert statuses["200"] > count / 20, statuses
    assert process.poll() is None, "the server has ended"
    good = f"GET /api/results HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    assert send(port, good) == "200"
    process.terminate()
    assert "Traceback" not in process.communicate(timeout=30)[1]
