"""localisation_by_slide.csv: what is written is read back, what is wrong is named."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sacmil.errors import RunError
from sacmil.results import (
    LOCALIZATION_FILE,
    SlideLocalization,
    read_localization,
    write_localization,
)

ROW = SlideLocalization("s,1", "p\u00e9", 2, 1, "sac_mil", 9, 3, 1 / 3, 2 / 3)


def test_rows_read_back_exactly(tmp_path: Path) -> None:
    write_localization(tmp_path / LOCALIZATION_FILE, [ROW])
    assert read_localization(tmp_path) == [ROW]
    assert read_localization(tmp_path / LOCALIZATION_FILE) == [ROW]


def test_a_slide_of_one_kind_has_empty_cells(tmp_path: Path) -> None:
    row = ROW._replace(positives=0, auc=math.nan, average_precision=math.nan)
    write_localization(tmp_path / LOCALIZATION_FILE, [row])
    assert (tmp_path / LOCALIZATION_FILE).read_text(encoding="utf-8").endswith(",9,0,,\n")
    (found,) = read_localization(tmp_path)
    assert found[:7] == row[:7]
    assert math.isnan(found.auc)
    assert not found.has_both_labels


def test_a_run_without_the_file_has_no_rows(tmp_path: Path) -> None:
    assert read_localization(tmp_path) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("", "has the columns none; expected slide_id"),
        ("a,b\n", "has the columns a, b; expected slide_id"),
        ("{header}\ns,p,0,0,m,9\n", "line 2: cannot be parsed"),
        ("{header}\n\ns,p,x,0,m,9,3,0.5,0.5\n", "line 3: cannot be parsed"),
        ("{header}\ns,p,0,0,m,9,3,1.5,0.5\n", "line 2: has 1.5 and 0.5; expected 0 to 1"),
        ("{header}\ns,p,0,0,m,9,3,,\n", "line 2: has nan and nan; expected 0 to 1"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path: Path, wrong: str, message: str) -> None:
    header = ",".join(SlideLocalization._fields)
    (tmp_path / LOCALIZATION_FILE).write_text(wrong.format(header=header))
    with pytest.raises(RunError, match=message) as raised:
        read_localization(tmp_path)
    assert str(tmp_path / LOCALIZATION_FILE) in str(raised.value)
