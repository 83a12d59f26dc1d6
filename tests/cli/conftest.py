"""The command line, run here for speed or in a process of its own where that is the point."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from sacmil.cli.main import main


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def sacmil(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable:
    """Runs ``sacmil ARGUMENTS`` in this process."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["sacmil", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def sacmil_process() -> Callable:
    """Runs ``sacmil ARGUMENTS`` in its own process; ``before`` is Python run first there."""

    def run(*arguments: object, before: str = "", **environment: str) -> Done:
        code = f"{before}\nfrom sacmil.cli.main import main\nmain()"
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | environment,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run
