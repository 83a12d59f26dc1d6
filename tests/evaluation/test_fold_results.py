"""Only what was tested once, on the same slides for every seed, makes a trial."""

from __future__ import annotations

import numpy as np
import pytest
from answers import answers, shuffled

from sacmil.errors import RunError
from sacmil.evaluation.fold_results import collect_fold_results, compute_fold_metrics
from sacmil.evaluation.metrics import METRICS
from sacmil.results import Predictions


def test_a_value_is_the_mean_over_seeds_of_the_folds_metric() -> None:
    given = answers({"a": 1}, seeds=2)
    expected = [
        np.mean([METRICS["auc"](r.label, r.probabilities) for r in of_fold(given, fold)])
        for fold in range(3)
    ]
    np.testing.assert_allclose(
        compute_fold_metrics(collect_fold_results(given)["a"], "auc"), expected
    )


def of_fold(given: Predictions, fold: int) -> list[Predictions]:
    return [given.select((given.fold == fold) & (given.seed == seed)) for seed in (0, 1)]


def test_models_and_folds_come_in_order() -> None:
    found = collect_fold_results(shuffled(answers({"b": 1, "a": 1})))
    assert list(found) == ["a", "b"]
    assert [trial.fold for trial in found["a"]] == [0, 1, 2]


def test_validation_rows_are_left_out() -> None:
    given = answers({"a": 1})
    given.split[given.fold == 1] = "val"
    assert [trial.fold for trial in collect_fold_results(given)["a"]] == [0, 2]


def test_a_run_without_test_rows_is_refused() -> None:
    given = answers({"a": 1})
    given.split[:] = "val"
    with pytest.raises(RunError, match=r"found val.*finish the run"):
        collect_fold_results(given)
    with pytest.raises(RunError, match="found no rows"):
        collect_fold_results(given.select(np.arange(0)))


def test_a_slide_tested_twice_is_named() -> None:
    given = answers({"a": 1})
    with pytest.raises(RunError, match=rf"{given.slide_id[4]} was tested twice by a in fold"):
        collect_fold_results(given.select(np.r_[np.arange(len(given)), 4]))


def test_a_seed_that_lacks_a_slide_is_named() -> None:
    given = answers({"a": 1}, seeds=2)
    lacking = given.select((given.seed == 0) | (given.patient_id != "p7"))
    with pytest.raises(RunError, match=r"a, fold \d: seeds 0 and 1 .*p7 in one only"):
        collect_fold_results(lacking)


def slides_of_two_labels() -> Predictions:
    """Ten patients, p0 and p1 the first, each with a slide of either class."""
    given = answers({"a": 1}, patients=20, folds=1, seeds=2)
    given.patient_id[:] = [f"p{int(patient[1:]) // 2}" for patient in given.patient_id]
    return given


def test_slides_of_two_patients_may_bear_the_same_name() -> None:
    given = slides_of_two_labels()
    given.slide_id[:] = [f"s{label}" for label in given.label]
    trial = collect_fold_results(given)["a"][0]
    assert len(trial.units) == 20
    assert len({*zip(trial.patients.tolist(), trial.units.tolist(), strict=True)}) == 20


def test_a_slide_that_changed_its_patient_is_named() -> None:
    given = slides_of_two_labels()
    given.patient_id[(given.slide_id == "p0-s0") & (given.seed == 1)] = "p9"
    with pytest.raises(RunError, match=r"seeds 0 and 1 .*\(p0-s0 in one only\)"):
        collect_fold_results(given)
