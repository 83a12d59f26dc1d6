"""Only what was tested once, on the same slides for every seed, makes a trial."""

from __future__ import annotations

import numpy as np
import pytest
from answers import answers, shuffled

from sacmil.errors import RunError
from sacmil.evaluation.fold_results import (
    average_by_patient,
    collect_fold_results,
    compute_fold_metrics,
    find_unit,
    find_unit_by_model,
    sort_rows,
)
from sacmil.metrics.classification import METRICS
from sacmil.results import KEY_COLUMNS, Predictions


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


# The unit is the patient wherever a patient has one label.


def rows(*listed: tuple[str, str, int, list[float]]) -> Predictions:
    """Of slide, patient, label and probabilities, all in one test part."""
    keys = [(slide, patient, "test", 0, 0, "a", label) for slide, patient, label, _ in listed]
    return Predictions.from_rows(["no", "yes"], keys, [p for *_, p in listed])


def test_a_patients_probability_is_the_mean_over_slides() -> None:
    found = average_by_patient(
        rows(("1", "x", 1, [0.2, 0.8]), ("2", "y", 0, [0.9, 0.1]), ("3", "x", 1, [0.6, 0.4]))
    )
    assert found.patient_id.tolist() == found.slide_id.tolist() == ["x", "y"]
    assert found.label.tolist() == [1, 0]
    np.testing.assert_allclose(found.probabilities, [[0.4, 0.6], [0.9, 0.1]])


def test_slides_stay_apart_when_a_patient_has_two_labels() -> None:
    given = rows(("1", "x", 1, [0.2, 0.8]), ("2", "y", 0, [0.9, 0.1]), ("3", "x", 0, [0.6, 0.4]))
    assert find_unit(given) == "slide"
    assert average_by_patient(given) is given


def test_one_label_per_patient_makes_the_patient_the_unit() -> None:
    assert find_unit(answers({"a": 1}, slides=2)) == "patient"


def test_models_seeds_folds_and_splits_are_never_mixed() -> None:
    given = answers({"a": 1, "b": 2}, patients=6, repeats=2, seeds=2, slides=3)
    given.split[:5] = "val"
    found = average_by_patient(given)
    for row in range(len(found)):
        mine = np.ones(len(given), dtype=bool)
        for key in ("model", "seed", "fold", "split", "patient_id"):
            mine &= getattr(given, key) == getattr(found, key)[row]
        np.testing.assert_allclose(found.probabilities[row], given.probabilities[mine].mean(0))
    keys = zip(*(getattr(found, key) for key in KEY_COLUMNS), strict=True)
    assert len({*keys}) == len(found)


def test_row_order_changes_nothing() -> None:
    given = answers({"a": 1, "b": 2}, patients=9, seeds=2, slides=3)
    one, other = average_by_patient(given), average_by_patient(shuffled(given))
    for key in (*KEY_COLUMNS, "probabilities"):
        np.testing.assert_array_equal(getattr(one, key), getattr(other, key))


def test_units_of_units_are_the_same() -> None:
    once = average_by_patient(answers({"a": 1}, slides=2))
    np.testing.assert_array_equal(average_by_patient(once).probabilities, once.probabilities)


def test_nothing_has_no_units() -> None:
    nothing = rows()
    assert len(average_by_patient(nothing)) == 0


@pytest.mark.parametrize("key", ["model", "seed", "fold", "split", "patient_id"])
def test_sorted_rows_hold_what_is_equal_together(key: str) -> None:
    given = sort_rows(shuffled(answers({"b": 1, "a": 2}, patients=8, seeds=2)))
    assert given.model.tolist() == sorted(given.model.tolist())
    first = given.select(given.model == "a")
    assert first.seed.tolist() == sorted(first.seed.tolist())
    assert len(getattr(given, key)) == 32


def test_what_stands_beside_a_model_does_not_change_its_figures() -> None:
    """Two runs that number their patients alike, with other labels."""
    one = answers_of("one", [0, 0, 1])
    two = answers_of("two", [1, 1, 0])
    single, beside = (
        average_by_patient(one),
        average_by_patient(Predictions.concatenate([one, two])),
    )
    assert find_unit_by_model(Predictions.concatenate([one, two])) == {
        "one": "patient",
        "two": "patient",
    }
    rows = beside.model == "one"
    np.testing.assert_array_equal(beside.probabilities[rows], single.probabilities)
    assert beside.slide_id[rows].tolist() == single.slide_id.tolist() == ["p0", "p1", "p2"]


def test_the_order_of_slides_breaks_no_ties() -> None:
    values = [0.1, 0.7, 0.4]
    means = set()
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        rows = [(f"s{i}", "p", "test", 0, 0, "m", 1) for i in range(3)]
        p = [[1 - values[i], values[i]] for i in order]
        means.add(
            float(average_by_patient(Predictions.from_rows("ab", rows, p)).probabilities[0, 1])
        )
    assert means == {0.4}


def answers_of(model: str, labels: list[int]) -> Predictions:
    rows = [
        (f"s{p}-{n}", f"p{p}", "test", 0, 0, model, label)
        for p, label in enumerate(labels)
        for n in range(2)
    ]
    return Predictions.from_rows("ab", rows, [[0.25, 0.75]] * len(rows))
