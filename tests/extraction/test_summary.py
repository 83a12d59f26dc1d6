"""The summary of an extraction as a table of numbers."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from sacmil.extraction.summary import ExtractionSummary
from sacmil.extraction.table import ExtractionRow


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
