"""Which addresses need a token, and the errors of those that cannot be used."""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
from browser import viewer

from sacmil.errors import ConfigError, SacMILError
from sacmil.viewer.content import ResultsApi
from sacmil.viewer.responses import is_built
from sacmil.viewer.server import LogLimit, bind_server


@pytest.mark.skipif(not is_built(), reason="the page is not built; type: make viewer")
def test_nothing_in_the_working_directory_is_ever_run(folder) -> None:
    """Results may have been downloaded, and `sacmil view .` is what one types in their folder."""
    modules = ("queue", "numpy", "openslide", "tifffile", "sitecustomize", "sacmil")
    for name in modules:
        (folder / f"{name}.py").write_text(
            f"open({str(folder / f'{name}-was-run')!r}, 'w').close()\n"
        )
    with viewer(".", cwd=folder) as address:
        for target in ("", "api/results", "api/slides/0/tiles/9/0_0.jpg", "api/slides/0/scores/0"):
            with urlopen(f"{address}{target}", timeout=60) as response:
                assert response.status == 200
    assert list(folder.glob("*-was-run")) == []


@pytest.fixture
def api(made: Path) -> ResultsApi:
    return ResultsApi(made)


def test_on_loopback_no_token_is_needed(api) -> None:
    server = bind_server(api, "127.0.0.1", 0)
    with server.listener:
        port = server.listener.getsockname()[1]
        assert server.url == f"http://127.0.0.1:{port}/"


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_beyond_loopback_a_token_is_made_each_time_anew(api, host: str) -> None:
    urls = []
    for _ in range(2):
        try:
            server = bind_server(api, host, 0)
        except SacMILError:
            pytest.skip(f"this machine has no {host}")
        server.listener.close()
        urls.append(server.url)
    tokens = [url.partition("?token=")[2] for url in urls]
    assert len(tokens[0]) >= 40
    assert tokens[0] != tokens[1]


def test_a_token_that_is_given_is_taken(api) -> None:
    server = bind_server(api, "127.0.0.1", 0, "mine-and-yours")
    server.listener.close()
    assert server.url.endswith("/?token=mine-and-yours")


@pytest.mark.parametrize(
    "token", ["", "short", "with space", "a" * 201, "ümlaut-token", "a\nb" * 9]
)
def test_an_invalid_token_is_rejected(api, token: str) -> None:
    with pytest.raises(ConfigError, match="8 to 200 letters"):
        bind_server(api, "127.0.0.1", 0, token)


def test_a_port_in_use_names_another(api) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SacMILError, match=rf"port {port} .* use `port={port + 1}`, or"):
            bind_server(api, "127.0.0.1", port)


def test_an_unknown_host_is_rejected(api) -> None:
    for host in ("no.such.host.invalid", "a" * 300, "\ud800"):
        with pytest.raises(ConfigError, match="is unknown"):
            bind_server(api, host, 0)


def test_an_address_of_another_machine_is_rejected(api) -> None:
    with pytest.raises(SacMILError, match=r"port 0 of 192\.0\.2\.1 cannot be used"):
        bind_server(api, "192.0.2.1", 0)


def test_a_flood_of_errors_leaves_few_lines_and_their_count() -> None:
    now, messages = [0.0], []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = logging.Logger("flood")
    logger.addHandler(handler)
    logger.addFilter(LogLimit(5, 60, lambda: now[0]))
    for number in range(1000):
        logger.error("failed %d", number)
    now[0] = 61
    logger.error("failed %s", "later")
    assert messages == [*(f"failed {n}" for n in range(5)), "failed later (995 more left out)"]
