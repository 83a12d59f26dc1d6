"""``sacmil demo`` where things are missing or full."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = ("--slides", 12, "--epochs", 1)

LIMIT = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no file sizes")
def test_a_file_that_does_not_fit_is_told_in_one_line(
    sacmil_process: Callable, tmp_path: Path
) -> None:
    done = sacmil_process("demo", *SMALL, "--out", tmp_path / "report", before=LIMIT)
    assert done.code == 1
    told = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert len(told) == 1
    assert "File too large" in told[0]
    assert "Traceback" not in done.err
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_without_matplotlib_nothing_is_trained(sacmil_process: Callable, tmp_path: Path) -> None:
    hide = (
        "import importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'matplotlib' else found(name, *rest)"
    )
    done = sacmil_process("demo", *SMALL, "--out", tmp_path / "report", before=hide)
    assert done.code == 1
    assert "pip install 'sacmil[plots]'" in done.err
    assert "training" not in done.err
    assert not (tmp_path / "report").exists()


def test_a_closed_error_stream_stops_nothing(sacmil_process: Callable, tmp_path: Path) -> None:
    before = "import sys; sys.stderr = None"
    done = sacmil_process("demo", *SMALL, "--out", tmp_path / "report", before=before)
    assert done.code == 0
    assert (tmp_path / "report" / "index.html").is_file()
