"""``sacmil demo`` where things are missing, full or wrong; workflows/test_demo.py runs it whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.usefixtures("inline_workers")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no file sizes")
def test_a_file_that_does_not_fit_is_reported_in_one_line(
    sacmil: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    # Python would keep the compiled code of modules cut at the limit, for every later import.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))  # Python ignores the signal
    try:
        done = sacmil("demo", "--quick", "--out", tmp_path / "report")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.code == 1
    lines = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert "drawing " in lines[0]
    assert "File too large" in lines[0]
    assert "Traceback" not in done.err
    assert list(tmp_path.rglob("*.tif")) == []


def test_without_matplotlib_nothing_is_begun(
    sacmil: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacmil.evaluation.plots.find_spec", lambda name: None)
    done = sacmil("demo", "--quick", "--out", tmp_path / "report")
    assert done.code == 1
    assert "pip install 'sacmil[plots]'" in done.err
    assert not (tmp_path / "report").exists()


def test_an_odd_number_of_slides_is_refused(sacmil: Callable, tmp_path: Path) -> None:
    done = sacmil("demo", "--slides", 13, "--out", tmp_path / "report")
    assert done.code == 2
    assert "expected an even number of slides" in done.err


def test_a_folder_of_something_else_is_left_unchanged(sacmil: Callable, tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("years of work")
    done = sacmil("demo", "--quick", "--out", tmp_path)
    assert done.code == 1
    assert "holds thesis.doc and is not a demonstration; choose another --out" in done.err
