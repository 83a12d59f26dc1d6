"""No name becomes a formula in a spreadsheet, and every name reads back as it was."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sacmil.cohorts.cohort import Cohort, LabeledSlide, read_cohort, write_cohort
from sacmil.cohorts.split_cohort import read_splits, write_splits
from sacmil.cohorts.splits import Fold
from sacmil.csv_text import escape_cell, escape_cells, restore_cell
from sacmil.errors import FormatError
from sacmil.evaluation.table_format import Cell, ResultTable, render_table
from sacmil.extraction.table import ExtractionRow as ExtractionRow
from sacmil.extraction.table import ExtractionTable
from sacmil.results import (
    Predictions,
    SlideLocalization,
    read_localization,
    read_predictions,
    write_localization,
    write_predictions,
)
from sacmil.slides.resolution import SlideResolutions
from sacmil.training.bag_checks import _BagRecord, _read_records, _write_records
from sacmil.workflows.convert import ConversionRow as ConversionRow
from sacmil.workflows.convert import append_row, read_table, write_table

NAMES = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "'=1+1", "''@x", "'plain", "-0.5", "＝1+1"]
TRIGGERS = "=+-@\t\r\n＝＋－＠"


@settings(max_examples=50)
@given(st.text(st.sampled_from(TRIGGERS + "'a1.e")))
@example("'-1")
@example("")
def test_every_text_reads_back_and_only_numbers_begin_like_a_formula(text: str) -> None:
    escaped = escape_cell(text)
    assert restore_cell(escaped) == text
    if escaped[:1] and escaped[0] in TRIGGERS:
        float(escaped)


def test_numbers_and_names_without_a_formula_are_written_as_they_are() -> None:
    cells = [-0.5, -1, None, "-0.5", "+1e-3", "slide", "'plain", ""]
    assert escape_cells(cells) == cells


def predictions(path: Path) -> list[str]:
    rows = [(name, name, "test", 0, 0, name, 0) for name in NAMES]
    found = Predictions.from_rows(["=a", "-b"], rows, [[0.5, 0.5]] * len(rows))
    write_predictions(path, found)
    back = read_predictions(path)
    assert back.classes == found.classes
    assert back.model.tolist() == back.patient_id.tolist() == NAMES
    return [str(name) for name in back.slide_id]


def localisation(path: Path) -> list[str]:
    write_localization(path, [SlideLocalization(n, n, 0, 0, n, 2, 1, 0.5, 0.5) for n in NAMES])
    return [row.slide_id for row in read_localization(path)]


def extraction(path: Path) -> list[str]:
    record = ExtractionTable(path)
    for name in NAMES:
        record.write(ExtractionRow(name, *[name] * (len(fields(ExtractionRow)) - 1)))
    return [row.slide_id for row in ExtractionTable(path)._rows.values()]


def conversion(path: Path) -> list[str]:
    rows = [
        ConversionRow(file=n, slide_id=n, status="failed", size="1", modified_ns="1", settings=n)
        for n in NAMES
    ]
    write_table(path, {row.file: row for row in rows[:-1]})
    append_row(path, rows[-1])
    assert list(read_table(path).values()) == rows
    return list(read_table(path))


def bag_hashes(path: Path) -> list[str]:
    _write_records(path, {name: _BagRecord(name, "1", "1", "a", name, name, "") for name in NAMES})
    assert [known.path for known in _read_records(path).values()] == NAMES
    return list(_read_records(path))


def label_table(path: Path) -> list[str]:
    write_cohort(path, COHORT)
    assert read_cohort(path).classes == COHORT.classes
    return list(read_cohort(path, site="site").by_id)


COHORT = Cohort(
    tuple(LabeledSlide(n, f"={n}", number % 2, "@site") for number, n in enumerate(NAMES)),
    ("=a", "b"),
)


@pytest.mark.parametrize(
    "write_and_read",
    [predictions, localisation, extraction, conversion, bag_hashes, label_table],
)
def test_every_table_returns_the_names_and_shows_no_formula(
    tmp_path: Path, write_and_read: Callable[[Path], list[str]]
) -> None:
    path = tmp_path / "table.csv"
    assert write_and_read(path) == NAMES
    assert_no_formulas(path.read_text())


def assert_no_formulas(text: str) -> None:
    cells = [cell for row in csv.reader(text.splitlines()) for cell in row]
    assert [cell for cell in cells if cell[:1] in [*TRIGGERS] and cell != "-0.5"] == []


def test_splits_name_the_slides_of_the_label_table(tmp_path: Path) -> None:
    write_cohort(tmp_path / "table.csv", COHORT)
    cohort = read_cohort(tmp_path / "table.csv")
    folds = [Fold(tuple(NAMES[:4]), tuple(NAMES[4:6]), tuple(NAMES[6:]))]
    (file,) = write_splits(tmp_path / "splits", folds)
    assert_no_formulas(file.read_text())
    assert read_splits(tmp_path / "splits", cohort) == folds


def test_a_run_goes_on_with_the_splits_of_an_earlier_version(tmp_path: Path) -> None:
    folds = [Fold(("=a", "b"), (), ("-c",))]
    old = ",train,val,test\n0,=a,,-c\n1,b,,\n"
    (tmp_path / "splits_0.csv").write_text(old)
    write_splits(tmp_path, folds)  # equal, so nothing is replaced and nothing rejected
    assert (tmp_path / "splits_0.csv").read_text() == old.replace("=a", "'=a").replace("-c", "'-c")


def test_names_of_earlier_versions_are_read_without_an_apostrophe(tmp_path: Path) -> None:
    path = tmp_path / "predictions.csv"
    header = "slide_id,patient_id,split,fold,seed,model,label,p_a,p_b\n"
    path.write_text(header + "=x,-p,test,0,0,m,a,0.5,0.5\n")
    found = read_predictions(path)
    assert (found.slide_id[0], found.patient_id[0]) == ("=x", "-p")


def test_a_resolution_table_names_slides_as_other_tables_do(tmp_path: Path) -> None:
    path = tmp_path / "mpp.csv"
    path.write_text("wsi,mpp\n'=x.svs,0.25\n")
    assert list(SlideResolutions.parse(str(path)).by_slide) == ["=x.svs"]


def test_tables_for_spreadsheets_escape_models_and_leave_negative_numbers() -> None:
    record = {"model": "=1+1", "difference": -0.5}
    table = ResultTable("", ("model",), ((Cell("=1+1"),),), (record,))
    assert render_table(table, "csv") == "model,difference\n'=1+1,-0.5\n"


def test_a_table_of_extraction_with_an_endless_cell_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "extraction.csv"
    path.write_text("slide_id," + "x" * 200_000)
    with pytest.raises(FormatError, match=r"cannot be read as a table.*move it away"):
        ExtractionTable(path)
