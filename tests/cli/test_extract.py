"""Wrong options of ``sacmil extract`` are reported before any slide is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image


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
    sacmil: Callable, tmp_path: Path, words: str, message: str
) -> None:
    done = sacmil("extract", tmp_path, "--out", tmp_path / "out", *words.split())
    assert done.code == 2, done
    assert message in done.err
    assert not (tmp_path / "out").exists()


def test_no_slides_is_an_error_that_says_what_was_looked_for(
    sacmil: Callable, tmp_path: Path
) -> None:
    done = sacmil("extract", tmp_path, "--out", tmp_path / "out")
    assert done.code == 1
    assert ".svs" in done.err


def test_one_cause_is_printed_once_with_a_count(
    sacmil: Callable, inline_workers: None, tmp_path: Path
) -> None:
    for number in range(5):
        Image.new("RGB", (90 + number, 80), (200, 120, 180)).save(tmp_path / f"cell_{number}.bmp")
    Image.new("RGB", (90, 80)).save(tmp_path / "cell_0_anno.bmp")
    cut = ["--until", "tiles", "--patch-size", "115px", "--mpp", "none"]
    names = ["--include", "*.bmp", "--exclude", "*_anno*"]
    done = sacmil("extract", tmp_path, "--out", tmp_path / "out", *cut, *names)
    assert done.code == 1
    first, *others = done.err.splitlines()
    assert first.startswith("cell_0: failed, ")
    assert others == [
        f"5 slides failed for the same reason (cell_0, cell_1, cell_2, …); the first: {first[16:]}",
        f"5 failed; see the reasons in {tmp_path / 'out' / 'extraction.csv'}",
    ]


@pytest.mark.filterwarnings("default")
def test_a_name_in_the_table_of_resolutions_without_a_slide_is_a_warning(
    sacmil: Callable, inline_workers: None, tmp_path: Path
) -> None:
    Image.effect_noise((64, 64), 60).convert("RGB").save(tmp_path / "a.png")
    (tmp_path / "mpp.csv").write_text("wsi,mpp\na,0.5\nb,0.5\n")
    table = ["--slide-mpp", tmp_path / "mpp.csv"]
    done = sacmil("extract", tmp_path, "--out", tmp_path / "out", "--until", "tissue", *table)
    assert done.code == 0, done
    assert done.err.splitlines()[0] == "Warning: --slide-mpp: no slide is named b"
    assert done.out.splitlines()[0] == "1 of 1 slides done"
