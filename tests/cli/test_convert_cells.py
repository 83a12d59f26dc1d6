"""``sacmil convert`` of tables of cells; tests/cells has what they become."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sacmil import read_bag

TABLE = "image,x,y,cell_type\n" + "".join(
    f"image-{n % 4},{n * n % 83},{n * 7 % 61},{['tumour', 'T cell', 'B cell'][n % 3]}\n"
    for n in range(160)
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "cells.csv").write_text(TABLE)
    return tmp_path / "cells.csv"


def test_the_command_reports_what_was_made(sacmil: Callable, table: Path, tmp_path: Path) -> None:
    done = sacmil("convert", "--from", "cells", table, "--out", tmp_path / "bags")
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "4 images with 160 cells",
        "Features: B cell, T cell, tumour",
        f"Side of a cell's tile: {read_bag(tmp_path / 'bags/image-0.h5').patch_size:.4g}, the "
        "median distance of neighbors",
        f"Table of the images, for a column of labels: {tmp_path / 'bags/slides.csv'}",
    ]
    assert sacmil("convert", table, "--out", tmp_path / "found").code == 0


def test_options_of_cells_are_not_for_bags(sacmil: Callable, table: Path, tmp_path: Path) -> None:
    done = sacmil("convert", tmp_path, "--type", "x", "--out", tmp_path / "bags")
    assert "--type is for tables of cells; add --from cells" in done.err
    done = sacmil("convert", table, "--stride", 3, "--out", tmp_path / "bags")
    assert "--stride is for bags; leave it out for cells" in done.err
    done = sacmil("convert", table, "--x", "left", "--out", tmp_path / "bags")
    assert "no column 'left' for --x" in done.err
    assert done.code == 1


def test_an_unknown_layout_is_answered_with_all(sacmil: Callable, table: Path, tmp_path) -> None:
    done = sacmil("convert", table, "--from", "cell", "--out", tmp_path / "bags")
    assert "did you mean 'cells'" in done.err
    assert done.code == 2
