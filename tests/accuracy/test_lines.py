"""Results survive being killed, and nothing is done twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._lines import Lines

JOB = Job(study="s", task="cluster", variant="v", model="sac_mil", source={"seed": 0})
FOUND = {
    "auc": 0.75,
    "seconds": 1.5,
    "labels": [0, 1],
    "answers": [-1.25, 2.0],
    "more": {"x2": 0.5},
}


def test_a_line_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = Lines(tmp_path / "s.csv").append(JOB, FOUND)
    (read,) = Lines(tmp_path / "s.csv").lines
    assert read == written
    assert (read["auc"], read["answers"], read["key"]) == ("0.75", "-1.25 2", JOB.key)


def test_what_is_done_is_known_and_what_failed_is_not_done(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "s.csv")
    other = replace(JOB, seed=1)
    lines.append(JOB, FOUND)
    lines.append(other, {"failure": "no memory"})
    assert Lines(tmp_path / "s.csv").done() == {JOB.key}
    lines.append(other, FOUND)
    assert Lines(tmp_path / "s.csv").done() == {JOB.key, other.key}


def test_a_file_cut_anywhere_loses_its_last_line_at_most(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    lines = Lines(path)
    lines.append(JOB, FOUND)
    first = path.stat().st_size
    other = replace(JOB, seed=1)
    lines.append(other, FOUND)
    whole = path.read_bytes()
    for end in range(first, len(whole), 7):
        path.write_bytes(whole[:end])
        mended = Lines(path)
        assert mended.done() == {JOB.key}
        mended.append(other, FOUND)
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "change",
    [
        {"task": "margin"},
        {"model": "abmil"},
        {"source": {"seed": 1}},
        {"split": {"fold": 1, "repeat": 1}},
        {"options": {"k": 8}},
        {"arrangement": "raster"},
        {"training": {"lr": 1e-3}},
        {"seed": 1},
        {"role": "tune"},
    ],
)
def test_a_job_that_differs_in_anything_has_another_key(change: dict[str, object]) -> None:
    assert replace(JOB, **change).key != JOB.key
    assert replace(JOB).key == JOB.key
