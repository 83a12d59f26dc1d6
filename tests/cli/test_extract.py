"""Wrong options of ``sacmil extract`` are reported before any slide is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from sacmil.cli.extract import command


def sacmil(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sacmil", "extract", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mag 0", "magnification"),
        ("--mpp 0.5 --mag 20", "both set the resolution"),
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
        ("--patch-size 115px", "add --mpp none"),
        ("--patch-size 115um", "115px"),
        ("--mpp fine", "none to count in pixels"),
        ("--mpp none --slide-mpp 0.5", "leave --slide-mpp out"),
        ("--tissue most", "'auto', 'detect', 'all'"),
    ],
)
def test_a_wrong_call_ends_with_two_and_a_sentence(
    tmp_path: Path, words: str, message: str
) -> None:
    # in this process: a new one would take most of the time to start
    done = CliRunner().invoke(
        command, [str(tmp_path), "--out", str(tmp_path / "out"), *words.split()]
    )
    assert done.exit_code == 2, done.output
    assert message in done.output
    assert not (tmp_path / "out").exists()


def test_no_slides_is_an_error_that_says_what_was_looked_for(tmp_path: Path) -> None:
    done = sacmil(tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 1
    assert ".svs" in done.stderr


def test_one_cause_is_printed_once_with_a_count(tmp_path: Path) -> None:
    for number in range(5):
        Image.new("RGB", (90 + number, 80), (200, 120, 180)).save(tmp_path / f"cell_{number}.bmp")
    Image.new("RGB", (90, 80)).save(tmp_path / "cell_0_anno.bmp")
    cut = ["--until", "tiles", "--patch-size", "115px", "--mpp", "none"]
    names = ["--include", "*.bmp", "--exclude", "*_anno*"]
    done = sacmil(tmp_path, "--out", tmp_path / "out", *cut, *names)
    assert done.returncode == 1
    first, *others = done.stderr.splitlines()
    assert first.startswith("cell_0: failed, ")
    assert others == [
        f"5 slides failed for the same reason (cell_0, cell_1, cell_2, …); the first: {first[16:]}",
        f"5 failed; see the reasons in {tmp_path / 'out' / 'extraction.csv'}",
    ]
