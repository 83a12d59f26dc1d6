"""Localisation of a run from its saved models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_cohort import write_material

from sacmil import read_bag, write_bag
from sacmil.errors import RunError
from sacmil.results import LOCALIZATION_FILE, read_localization
from sacmil.training.train import cross_validate
from sacmil.workflows.predict_dataset import measure_run_localization


def test_saved_models_measure_what_testing_measured_and_other_bags_are_rejected(
    tmp_path: Path,
) -> None:
    material = write_material(tmp_path / "bags", patients=8)
    for path in material.bags.values():
        write_bag(path, replace(read_bag(path), labels=np.arange(30) % 2))
    run = tmp_path / "run"
    cross_validate(material.data, "mean_pool", out=run, folds=material.folds, options={"epochs": 1})
    before = {file: file.read_bytes() for file in run.rglob("*.*")}
    for file in run.rglob(LOCALIZATION_FILE):
        file.unlink()
    measure_run_localization(run, [tmp_path / "bags"])
    assert {file: file.read_bytes() for file in run.rglob("*.*")}.keys() == before.keys()
    files = [file for file in before if file.name != LOCALIZATION_FILE]
    assert all(file.read_bytes() == before[file] for file in files)
    expected = tmp_path / "before.csv"
    expected.write_bytes(before[run / LOCALIZATION_FILE])
    for found, known in zip(read_localization(run), read_localization(expected), strict=True):
        assert found[:7] == known[:7]
        assert found[7:] == pytest.approx(known[7:])

    kept = (run / LOCALIZATION_FILE).read_bytes()
    for labels in (None, np.zeros(30, int)):
        for path in material.bags.values():
            write_bag(path, replace(read_bag(path), labels=labels))
        with pytest.raises(RunError, match="no bag of a test slide has both positive and negative"):
            measure_run_localization(run, [tmp_path / "bags"])
        assert (run / LOCALIZATION_FILE).read_bytes() == kept

    for path in material.bags.values():
        write_bag(path, replace(read_bag(path), labels=np.arange(30) % 2))
    tested = material.bags[material.cohort.slides[0].slide_id]
    bag = read_bag(tested)
    write_bag(tested, replace(bag, features=bag.features + 9))
    with pytest.raises(RunError, match=r"now predicts .* expected the bags that the run was"):
        measure_run_localization(run, [tmp_path / "bags"])


def test_a_run_without_models_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run; expected a folder of sacmil train"):
        measure_run_localization(tmp_path, [tmp_path])
