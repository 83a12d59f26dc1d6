"""``sacmil calibrate``, and ``--calibrated`` of the commands that predict and evaluate."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from answering import write_bags
from validated_run import write_validated_run

from sacmil.card import read_card
from sacmil.results import Run

FEW = ("--draws", 50)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_validated_run(tmp_path / "run")


def test_a_line_is_printed_for_each_fold(sacmil: Callable, run: Path) -> None:
    done = sacmil("calibrate", run)
    assert (done.code, done.err) == (0, "")
    header, _, first, second, _, caption, last = done.out.splitlines()
    assert header.split()[:5] == ["model", "seed", "fold", "of", "temperature"]
    assert first.split()[:4] == ["abmil", "0", "0", "tumour"]
    assert second.split()[:4] == ["abmil", "0", "1", "tumour"]
    assert "optimistic" in caption
    assert last == "2 cards written; use them with --calibrated"
    for folder in Run(run).model_folders():
        assert (read_card(folder).calibration or {})["rule"] == "youden"


def test_a_sensitivity_chooses_the_rule(sacmil: Callable, run: Path) -> None:
    assert sacmil("calibrate", run, "--sensitivity", 0.95).code == 0
    for folder in Run(run).model_folders():
        assert (read_card(folder).calibration or {})["sensitivity"] == 0.95
    assert sacmil("calibrate", run, "--rule", "youden").code == 0
    for folder in Run(run).model_folders():
        assert (read_card(folder).calibration or {})["sensitivity"] is None


@pytest.mark.parametrize(
    "wrong", [["--sensitivity", "0"], ["--rule", "youden", "--sensitivity", "0.9"]]
)
def test_wrong_calls_are_rejected(sacmil: Callable, run: Path, wrong: list[str]) -> None:
    assert sacmil("calibrate", run, *wrong).code == 2


def test_a_run_without_validation_sets_is_an_error(sacmil: Callable, tmp_path: Path) -> None:
    done = sacmil("calibrate", write_validated_run(tmp_path / "run", val=0))
    assert done.code == 1
    assert "2 of 2 models have no validation predictions" in done.err
    assert "make them by sacmil split --validation 0.3" in done.err
    assert "monitor=val_loss" in done.err


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_missing_calibration_names_the_option(
    sacmil: Callable, run: Path, tmp_path: Path, command: str
) -> None:
    bags = write_bags(tmp_path / "bags", "s0")
    given = (bags, "--model", run, "--out", tmp_path / "out") if command == "predict" else (run,)
    done = sacmil(command, *given, "--calibrated")
    assert done.code == 1
    (line,) = done.err.strip().splitlines()
    assert "is not calibrated; calibrate its run with" in line
    assert line.endswith("Or leave out --calibrated")


def test_predictions_are_calibrated_on_request(sacmil: Callable, run: Path, tmp_path: Path) -> None:
    bags = write_bags(tmp_path / "bags", "s0")
    assert sacmil("calibrate", run).code == 0
    given = ("predict", bags, "--model", run, "--no-heatmaps", "--device", "cpu")
    rows = []
    for name, option in (("raw", []), ("calibrated", ["--calibrated"])):
        assert sacmil(*given, "--out", tmp_path / name, *option).code == 0
        with (tmp_path / name / "predictions.csv").open() as file:
            rows += csv.DictReader(file)
    raw, calibrated = (float(row["p_tumour"]) for row in rows)
    assert abs(calibrated - 0.5) < abs(raw - 0.5), "the temperatures are above 1"


def test_an_evaluation_prints_operating_points(sacmil: Callable, run: Path) -> None:
    assert sacmil("calibrate", run, "--sensitivity", 0.9).code == 0
    done = sacmil("evaluate", run, "--calibrated", *FEW)
    assert (done.code, done.err) == (0, "")
    assert "Sensitivity" in done.out
    assert "sensitivity of at least 0.9" in done.out
    assert "Sensitivity" not in sacmil("evaluate", run, *FEW).out


def test_a_cohort_is_evaluated_at_the_thresholds(
    sacmil: Callable, run: Path, tmp_path: Path
) -> None:
    bags = write_bags(tmp_path / "bags", *(f"s{n}" for n in range(8)))
    lines = [f"s{n},p{n},{('normal', 'tumour')[n % 2]}" for n in range(8)]
    (tmp_path / "table.csv").write_text("\n".join(["slide_id,patient_id,label", *lines]))
    assert sacmil("calibrate", run).code == 0
    given = ("evaluate", run, "--table", tmp_path / "table.csv", "--bags", bags, *FEW)
    done = sacmil(*given, "--calibrated")
    assert done.code == 0, done.err
    assert "NPV" in done.out
