"""``sacmil view``."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from results_maker import make_results

WITH_PAGE = """
import sacmil.viewer.responses as page
page.is_built = lambda static=None: static is None
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_results(tmp_path_factory.mktemp("view") / "results")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacmil.viewer.responses.is_built", lambda: True)


@pytest.fixture
def running(results: Path) -> Iterator[subprocess.Popen[str]]:
    code = f"{WITH_PAGE}from sacmil.cli.main import main\nmain()"
    line = ["view", str(results), "--port", "0", "--token", "a-token-of-mine"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SACMIL_TRACEBACK": ""},
    ) as process:
        yield process
        process.kill()


def test_it_serves_until_it_is_interrupted_and_says_nothing_more(running) -> None:
    address = urlsplit(running.stdout.readline().strip())
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)
    connection.request("GET", f"/?{address.query}")
    welcome = connection.getresponse()
    welcome.read()
    assert (welcome.status, welcome.getheader("location")) == (303, "/")
    cookie = {"Cookie": welcome.getheader("set-cookie").partition(";")[0]}
    connection.request("GET", "/api/results", headers=cookie)
    assert len(json.loads(connection.getresponse().read())["slides"]) == 7
    connection.request("GET", "/api/slides/0/tiles/11/0_0.jpg", headers=cookie)
    tile = connection.getresponse()
    assert (tile.status, tile.read()[:3]) == (200, b"\xff\xd8\xff")
    assert running.stdout.readline() == "Ctrl-C stops it. For research use only.\n"
    running.send_signal(signal.SIGINT)
    output = running.communicate(timeout=30)
    connection.close()
    assert (running.returncode, *output) == (0, "", "")


def test_a_request_line_without_end_is_refused_by_the_server(running) -> None:
    address = urlsplit(running.stdout.readline().strip())
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(b"GET /" + b"a" * 200_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_without_its_page_it_says_what_to_install(sacmil, results, monkeypatch) -> None:
    monkeypatch.setattr("sacmil.viewer.responses.is_built", lambda: False)
    done = sacmil("view", results)
    assert done.code == 1
    assert "Node.js 20" in done.err
    assert "make viewer" in done.err


def test_without_starlette_it_says_what_to_install(sacmil_process, results) -> None:
    for package in ("starlette", "uvicorn"):
        hidden = f"import sys; sys.modules[{package!r}] = None"
        done = sacmil_process("view", results, before=hidden, SACMIL_TRACEBACK="")
        assert done.code == 1
        assert done.err.endswith("pip install 'sacmil[view]'\n")


@pytest.mark.usefixtures("built")
def test_a_port_in_use_is_one_sentence(sacmil, results) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = sacmil("view", results, "--port", port)
    assert done.code == 1
    assert f"use --port {port + 1}" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("content", [None, "{", "{}", "[]"])
def test_a_folder_without_results_is_one_sentence(sacmil, tmp_path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "results.json").write_text(content)
    done = sacmil("view", tmp_path)
    assert done.code == 1
    assert "sacmil predict" in done.err or "JSON" in done.err
    assert done.err.count("\n") == 1


def test_a_wrong_call_is_reported_as_such(sacmil, tmp_path) -> None:
    assert sacmil("view", tmp_path / "nowhere").code == 2
    assert sacmil("view", tmp_path, "--port", "70000").code == 2
    assert sacmil("view").code == 2


def test_it_runs_where_torch_is_not_installed(sacmil_process, tmp_path) -> None:
    hidden = "import sys; sys.modules['torch'] = None\n" + WITH_PAGE
    done = sacmil_process("view", tmp_path, before=hidden, SACMIL_TRACEBACK="")
    assert "there is no results.json" in done.err
