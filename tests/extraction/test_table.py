"""The table of an extraction: rows are written in order, and soon after their slide is done."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest

from sacmil.extraction.extract_slides import write_rows
from sacmil.extraction.table import ExtractionRow, ExtractionSummary, ExtractionTable

ROW = ExtractionRow(**{field.name: "" for field in fields(ExtractionRow)})


def open_table(folder: Path) -> ExtractionTable:
    return ExtractionTable(folder / "extraction.csv")


def row(number: int) -> ExtractionRow:
    return replace(ROW, slide_id=f"slide-{number}", status="done")


def test_a_slow_disk_holds_up_the_fourth_slide_and_none_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, started = threading.Event(), []
    monkeypatch.setattr(
        ExtractionTable, "write", lambda *_: disk.wait(10) or pytest.fail("never released")
    )

    def slides() -> Iterator[Callable[[], ExtractionRow]]:
        for number in range(8):
            started.append(number)
            yield partial(row, number)

    rows = []
    writing = threading.Thread(
        target=lambda: rows.extend(write_rows(open_table(tmp_path), slides(), 8, None)), daemon=True
    )
    writing.start()
    writing.join(0.5)
    assert started == [0, 1, 2, 3], "slides that wait take memory"
    disk.set()
    writing.join(10)
    assert rows == [row(number) for number in range(8)]


def test_progress_reports_the_slides_left_in_order(tmp_path: Path) -> None:
    reported = []

    class Progress:
        def on_tiles(self, encoded: int, found: int) -> None: ...

        def on_slide(self, row: ExtractionRow, left: int) -> None:
            reported.append((row.slide_id, left))

    rows = (partial(row, number) for number in range(3))
    write_rows(open_table(tmp_path), rows, 3, Progress())
    assert reported == [("slide-0", 2), ("slide-1", 1), ("slide-2", 0)]
    lines = (tmp_path / "extraction.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["slide-0", "slide-1", "slide-2"]


def test_a_table_that_cannot_be_written_ends_the_run_soon(tmp_path: Path) -> None:
    started = []

    def fail() -> ExtractionRow:
        raise OSError(28, "No space left on device")

    def slides() -> Iterator[Callable[[], ExtractionRow]]:
        for number in range(100):
            started.append(number)
            yield fail

    with pytest.raises(OSError, match="No space left"):
        write_rows(open_table(tmp_path), slides(), 100, None)
    assert len(started) <= 4


def test_the_table_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    table = tmp_path / "extraction.csv"
    ExtractionTable(table).write(row(0))
    earlier = [line.rpartition(",")[0] for line in table.read_text().splitlines()]
    assert earlier[0].endswith(",seconds")
    table.write_text("\n".join(earlier) + "\n")
    ExtractionTable(table).write(replace(row(1), tissue="all"))
    header, old, new = table.read_text().splitlines()
    assert (header[-7:], old[-1], new[-4:]) == (",tissue", ",", ",all")


def test_a_row_is_added_without_writing_the_others_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(tmp_path)
    table.write(row(0))
    monkeypatch.setattr(ExtractionTable, "_rewrite", lambda _: pytest.fail("wrote all rows again"))
    for number in range(1, 4):
        table.write(row(number))
    table.finish()
    assert len((tmp_path / "extraction.csv").read_text().splitlines()) == 5


def test_an_unchanged_row_changes_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "extraction.csv"
    table = open_table(tmp_path)
    for number in range(3):
        table.write(replace(row(number), seconds="7.0"))
    table.finish()
    before = path.stat().st_mtime_ns, path.read_bytes()
    again = open_table(tmp_path)
    for number in range(3):
        again.write(replace(row(number), seconds="0.0"))
    again.finish()
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before


def test_a_table_cut_anywhere_is_continued_and_ends_with_equal_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds of them
    rows = [replace(row(n), reason='a "quoted"\nreason', tissue="detect") for n in range(3)]
    table = open_table(tmp_path)
    for each in rows:
        table.write(each)
    table.finish()
    path = tmp_path / "extraction.csv"
    content = path.read_bytes()
    for end in range(content.index(b"\n") + 1, len(content)):
        path.write_bytes(content[:end])
        resumed = open_table(tmp_path)
        for each in rows:
            resumed.write(each)
        resumed.finish()
        assert path.read_bytes() == content, end


def test_replaced_rows_are_removed_in_the_end(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    for each in (row(0), row(1), replace(row(0), status="failed", reason="gone")):
        table.write(each)
    table.finish()
    lines = (tmp_path / "extraction.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["slide-1", "slide-0"]


def make_row(**values: str) -> ExtractionRow:
    return ExtractionRow(**dict.fromkeys((one.name for one in fields(ExtractionRow)), "") | values)


def test_numbers_are_numbers_and_what_is_unknown_is_missing() -> None:
    rows = [make_row(tiles="12", mpp="unknown", seconds="1.5"), make_row(status="failed")]
    frame = ExtractionSummary(Path("out"), rows).to_frame()
    assert frame["tiles"].tolist()[0] == 12
    assert frame["seconds"].tolist()[0] == 1.5
    assert frame[["tiles", "mpp", "seconds"]].isna().to_numpy().tolist()[1] == [True] * 3
    assert frame["mpp"].isna().all()


def test_an_extraction_of_nothing_is_an_empty_table() -> None:
    assert len(ExtractionSummary(Path("out"), []).to_frame()) == 0
