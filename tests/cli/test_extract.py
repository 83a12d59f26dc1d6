"""What is wrong with the words of ``sacmil extract`` is told before any slide is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def sacmil(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sacmil", "extract", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--mag 0", "magnification"),
        ("--mpp 0.5 --mag 20", "twice"),
        ("--patch-size 0", "patch_size"),
        ("--overlap 256", "overlap"),
        ("--min-tissue 2", "min_tissue"),
        ("--encoder uni", "uni_v1"),
        ("--reader openslyde", "openslide"),
        ("--slide-mpp 250", "0.05 to 20"),
        ("--workers -3", "--workers"),
        ("--address auto", "--engine ray"),
        ("--until tiles --engine ray", "leave --engine ray out"),
        ("--gpus a,b", "0,1"),
    ],
)
def test_a_wrong_call_ends_with_two_and_a_sentence(tmp_path: Path, words: str, told: str) -> None:
    done = sacmil(tmp_path, "--out", tmp_path / "out", *words.split())
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert not (tmp_path / "out").exists()


def test_no_slides_is_an_error_that_says_what_was_looked_for(tmp_path: Path) -> None:
    done = sacmil(tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert ".svs" in done.stderr
