"""``sacmil demo`` where things are missing, full or wrong; workflows/test_demo*.py run it whole."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sacmil.evaluation.table_format import ResultTable
from sacmil.synthetic.bags import SurvivalTruth
from sacmil.workflows.survival_demo import NewPatient, SurvivalDemoSettings


@pytest.mark.usefixtures("inline_workers")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no file sizes")
def test_a_file_that_does_not_fit_is_reported_in_one_line(
    sacmil: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    # Python would keep the compiled code of modules cut at the limit, for every later import.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, limits[1]))  # Python ignores the signal
    try:
        done = sacmil("demo", "--quick", "--out", tmp_path / "report")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.code == 1
    lines = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert "drawing " in lines[0]
    assert "File too large" in lines[0]
    assert "Traceback" not in done.err
    assert list(tmp_path.rglob("*.tif")) == []


def test_without_matplotlib_nothing_is_begun(
    sacmil: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacmil.evaluation.plots.find_spec", lambda name: None)
    done = sacmil("demo", "--quick", "--out", tmp_path / "report")
    assert done.code == 1
    assert "pip install 'sacmil[plots]'" in done.err
    assert not (tmp_path / "report").exists()


def test_an_odd_number_of_slides_is_refused(sacmil: Callable, tmp_path: Path) -> None:
    done = sacmil("demo", "--slides", 13, "--out", tmp_path / "report")
    assert done.code == 2
    assert "expected an even number of slides" in done.err


def test_a_folder_of_something_else_is_left_unchanged(sacmil: Callable, tmp_path: Path) -> None:
    (tmp_path / "thesis.doc").write_text("years of work")
    done = sacmil("demo", "--quick", "--out", tmp_path)
    assert done.code == 1
    assert "holds thesis.doc and is not a demonstration; choose another --out" in done.err


@pytest.fixture
def survival_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list:
    """Return the settings of each run of the demonstration of survival, which does nothing."""
    found: list = []

    def run(out: Path, settings: SurvivalDemoSettings, callbacks: object) -> SimpleNamespace:
        found.append(settings)
        return SimpleNamespace(
            report=SimpleNamespace(summary=ResultTable("the caption", (), (), ())),
            oracle={"c": 0.751, "c_true_hazard": 0.79},
            verdict="the verdict",
            new_patients=[NewPatient("new-1", "high risk", SurvivalTruth(3.0, 1.0, 0.041))],
            page=out / "report.html",
            answers=out / "answers",
        )

    monkeypatch.setattr("sacmil.workflows.survival_demo.run_survival_demo", run)
    return found


def test_survival_prints_the_table_the_oracle_and_new_patients(
    sacmil: Callable, tmp_path: Path, survival_runs: list
) -> None:
    done = sacmil("demo", "--task", "survival", "--out", tmp_path)
    assert done.code == 0
    assert "the caption" in done.out
    assert "oracle: c 0.751 from the features, 0.790 from the true hazard" in done.out
    assert "the verdict" in done.out
    assert "new patient new-1: high risk; 4% of the immune cells are inside" in done.out
    assert f"report: {tmp_path / 'report.html'}" in done.out
    assert survival_runs == [SurvivalDemoSettings()]


def test_survival_takes_the_options_of_the_demonstration(
    sacmil: Callable, tmp_path: Path, survival_runs: list
) -> None:
    options = ("--quick", "--slides", 41, "--epochs", 3, "--seed", 7)
    assert sacmil("demo", "--task", "survival", *options, "--out", tmp_path).code == 0
    assert survival_runs == [SurvivalDemoSettings.make_quick(slides=41, epochs=3, seed=7)]


def test_without_a_task_classes_are_predicted(
    sacmil: Callable, tmp_path: Path, survival_runs: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacmil.evaluation.plots.find_spec", lambda name: None)
    assert sacmil("demo", "--quick", "--out", tmp_path / "report").code == 1
    assert survival_runs == []
