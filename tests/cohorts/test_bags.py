"""Headers are read in worker processes, so a file that crashes its reader is one problem."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from deadly_reading import hang, read_all_but_deadly

from sacmil.cohorts import bags as cohort_bags
from sacmil.cohorts.bags import BagHeader, read_headers
from sacmil.parallel import run_each


@pytest.fixture
def worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohort_bags, "run_each", run_each)


def write_arrays(folder: Path, *names: str) -> list[Path]:
    paths = [folder / f"{name}.npy" for name in names]
    for number, path in enumerate(paths, start=1):
        np.save(path, np.ones((number, 4)))
    return paths


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.usefixtures("worker_processes")
def test_a_file_that_ends_its_reader_is_one_problem_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohort_bags, "read_batch", read_all_but_deadly)
    paths = write_arrays(tmp_path, "a", "deadly")
    first, problem = read_headers(paths)
    assert first == BagHeader(1, 4, "")
    assert problem == (
        f"{paths[1]}: reading its header failed: the worker process died (SIGABRT); copy the file "
        "again or extract it anew"
    )


@pytest.mark.usefixtures("worker_processes")
def test_a_file_that_hangs_its_reader_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohort_bags, "read_batch", hang)
    for limit in ("_BATCH_LIMIT_S", "BAG_LIMIT_S"):
        monkeypatch.setattr(cohort_bags, limit, 0.2)
    (problem,) = read_headers(write_arrays(tmp_path, "a"))
    assert "a.npy: reading its header failed: took longer than 0.2 s; copy" in str(problem)


def test_headers_come_in_the_order_of_the_paths_however_they_are_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cohort_bags, "_BATCH_SIZE", 2)
    paths = write_arrays(tmp_path, "c", "a", "b")
    assert read_headers([*paths, paths[0]]) == [BagHeader(n, 4, "") for n in (1, 2, 3, 1)]
    assert read_headers([]) == []
