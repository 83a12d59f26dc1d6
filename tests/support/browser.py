"""A browser and a server for tests of the viewer's page; says what to type where one is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from sacmil.viewer.responses import is_built

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-site-isolation-trials",  # no new process for each page that is opened
)


def find_browser() -> str | None:
    """The path of Chromium or Chrome."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def missing() -> str | None:
    """What to type before the page can be tested; None where all is there."""
    if find_spec("playwright") is None:
        return "playwright is not installed; type: pip install '.[dev]'"
    if find_browser() is None:
        return "there is no chromium; type: sudo apt-get install chromium"
    if not is_built():
        return "the viewer's page is not built; install Node.js 20 or newer and type: make viewer"
    return None


def skip_unless_ready() -> None:
    """Skip with the command to type; fail where a browser was promised."""
    lacking = missing()
    if lacking and os.environ.get("SACMIL_REQUIRE_BROWSER") == "1":
        pytest.fail(f"SACMIL_REQUIRE_BROWSER is set, but {lacking}")
    if lacking:
        pytest.skip(lacking)


@contextmanager
def viewer(folder: Path | str, cwd: Path | None = None) -> Iterator[str]:
    """The address of ``sacmil view`` over a folder, in a process of its own.

    Args:
        folder: of the results.
        cwd: the working directory, from which the installed command imports nothing either.
    """
    command = [sys.executable, "-P", "-m", "sacmil", "view", str(folder), "--port", "0"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, cwd=cwd
    ) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), address
            yield address
        finally:
            server.terminate()
