"""Temperatures against a known distortion, thresholds against every other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from answering import write_model
from hypothesis import given, settings
from hypothesis import strategies as st

from sacmil.card import read_card, update_card
from sacmil.errors import CohortError, ModelFolderError, OptionError
from sacmil.evaluation.fold_results import average_by_patient
from sacmil.metrics.classification import METRICS
from sacmil.results import Prediction, Predictions
from sacmil.tasks import Classification, MultiLabel, Ordinal, Regression, Task
from sacmil.tasks.calibration import (
    MIN_PATIENTS,
    Calibration,
    choose_threshold,
    fit_calibration,
    list_threshold_columns,
    mark_positives,
)

few = settings(deadline=None, max_examples=40, derandomize=True)
TWO, THREE = Classification(("normal", "tumor")), Classification(("a", "b", "c"))
LABELS = MultiLabel(("er", "pr"))
TASKS: list[Task] = [TWO, THREE, LABELS]

Floats = npt.NDArray[np.float64]


def sigmoid(logits: npt.ArrayLike) -> Floats:
    return 1 / (1 + np.exp(-np.asarray(logits)))


def softmax(logits: Floats) -> Floats:
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def draw(
    task: Task, rows: int, temperatures: Sequence[float] = (1, 1), seed: int = 0
) -> tuple[Floats, Floats]:
    """Targets of calibrated probabilities, and these with logits times the temperatures."""
    random = np.random.default_rng(seed)
    logits = 2 * random.standard_normal((rows, len(task.prediction_columns)))
    if task.calibrated_as == "labels":
        targets = (random.random(logits.shape) < sigmoid(logits)).astype(float)
        return targets, sigmoid(logits * np.array(temperatures))
    cumulative = softmax(logits).cumsum(axis=1)
    targets = (random.random((rows, 1)) > cumulative[:, :-1]).sum(axis=1, keepdims=True)
    return targets.astype(float), softmax(logits * temperatures[0])


def draw_usable(task: Task, seed: int, rows: int = 40) -> tuple[Floats, Floats]:
    """Small validation sets that lack nothing."""
    targets, values = draw(task, rows, (2.0, 0.7), seed)
    width = 1 if task.has_classes else targets.shape[1]
    targets[:4] = np.arange(4)[:, None] % 2 * np.ones(width)
    return targets, values


# --- temperature ---------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [TWO, THREE])
def test_a_known_distortion_of_classes_is_recovered(task: Task) -> None:
    targets, values = draw(task, 6000, [3.0])
    (temperature,) = fit_calibration(task, targets, values).temperatures
    assert temperature == pytest.approx(3.0, rel=0.06)


def test_each_label_has_the_temperature_of_its_own_distortion() -> None:
    targets, values = draw(LABELS, 6000, [3.0, 0.5])
    found = fit_calibration(LABELS, targets, values).temperatures
    assert found == pytest.approx((3.0, 0.5), rel=0.06)


def test_a_missing_label_changes_nothing_for_another() -> None:
    targets, values = draw(LABELS, 400, [3.0, 0.5])
    whole = fit_calibration(LABELS, targets, values)
    targets[::2, 1] = np.nan
    found = fit_calibration(LABELS, targets, values)
    assert found.temperatures[0] == whole.temperatures[0]
    assert found.thresholds[0] == whole.thresholds[0]
    rows = slice(1, None, 2)
    known = fit_calibration(LABELS, targets[rows], values[rows])
    assert found.temperatures[1] == pytest.approx(known.temperatures[1], rel=1e-6)
    assert found.thresholds[1] == pytest.approx(known.thresholds[1], rel=1e-6)


@pytest.mark.parametrize("task", TASKS)
@few
@given(st.integers(0, 10_000))
def test_log_loss_on_the_fitted_set_never_grows(task: Task, seed: int) -> None:
    targets, values = draw_usable(task, seed)
    found = fit_calibration(task, targets, values)
    before, after = found.log_loss
    assert after <= before
    assert task.validation_loss(targets, values) == pytest.approx(before)
    assert task.validation_loss(targets, found.apply(values)) == pytest.approx(after)


@pytest.mark.parametrize("task", TASKS)
@few
@given(st.floats(0.1, 100), st.integers(0, 1000))
def test_the_order_of_predictions_stays(task: Task, temperature: float, seed: int) -> None:
    count = 2 if task is LABELS else 1
    _, values = draw(task, 50, (20.0, 20.0), seed)
    values = values.astype(np.float32).astype(np.float64)  # as models predict
    scaled = Calibration((temperature,) * count, (), "youden").apply(values)
    assert ((scaled >= 0) & (scaled <= 1)).all()
    if task is LABELS or task is TWO:
        for old, new in zip(values.T, scaled.T, strict=True):
            # of equals in float32 the other class may know the order
            assert not (np.less.outer(old, old) & np.greater.outer(new, new)).any()
    if task is not LABELS:
        np.testing.assert_allclose(scaled.sum(axis=1), 1, rtol=1e-12)
        largest = values.max(axis=1, keepdims=True)
        assert ((values == largest) | (scaled <= scaled.max(axis=1, keepdims=True))).all()


@pytest.mark.parametrize("task", TASKS)
def test_a_temperature_of_one_changes_nothing(task: Task) -> None:
    _, values = draw(task, 50)
    count = 2 if task is LABELS else 1
    found = Calibration((1.0,) * count, (), "youden").apply(values)
    np.testing.assert_allclose(found, values, rtol=1e-12)


def test_certain_predictions_stay_finite_and_in_order() -> None:
    certain = [[1.0, 0.0], [1.0, 1e-45], [0.0, 1.0]]
    found = Calibration((3.0,), (0.5,), "youden").apply(certain)
    assert np.isfinite(found).all()
    assert 0 < found[0, 1] <= found[1, 1] < found[2, 1]
    labels = Calibration((3.0, 3.0), (0.5, 0.5), "youden").apply([[0.0, 1.0]])
    assert 0 < labels[0, 0] < 1e-10
    assert 0.99 < labels[0, 1] < 1


def test_a_set_without_errors_does_not_sharpen_probabilities() -> None:
    labels = np.arange(40)[:, None] % 2.0
    p = np.where(labels == 1, 0.9, 0.1)
    found = fit_calibration(TWO, labels, np.hstack([1 - p, p]))
    assert found.temperatures == (1.0,)
    assert found.reached == ((1.0, 1.0),)
    far = np.where(labels == 1, 1 - 1e-30, 1e-30)  # its loss is zero for most temperatures
    assert fit_calibration(TWO, labels, np.hstack([1 - far, far])).temperatures == (1.0,)


# --- thresholds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("positive", "scores", "sensitivity", "expected"),
    [
        ([0, 0, 1, 1], [0.1, 0.3, 0.5, 0.9], None, 0.4),
        ([0, 1, 0, 1], [0.1, 0.3, 0.5, 0.9], None, 0.7),  # as good as 0.2, with more specificity
        ([0, 1, 0, 1], [0.1, 0.3, 0.5, 0.9], 1.0, 0.2),
        ([0, 1, 0, 1], [0.1, 0.3, 0.5, 0.9], 0.5, 0.7),
        ([0, 1, 0, 1], [0.1, 0.3, 0.5, 0.9], 0.51, 0.2),
        ([0, 1, 0, 1, 1], [0.2, 0.4, 0.4, 0.4, 0.8], None, 0.3),  # scores that are equal stay so
        ([0, 1, 0, 1, 1], [0.2, 0.4, 0.4, 0.4, 0.8], 0.3, 0.6),
        ([1, 0], [0.2, 0.6], 1.0, 0.1),  # below all
        ([1, 0], [0.2, 0.6], None, 0.8),  # above all: nothing is better than chance
    ],
)
def test_thresholds_of_small_cases(
    positive: list[int], scores: list[float], sensitivity: float | None, expected: float
) -> None:
    found = choose_threshold(np.array(positive) == 1, np.array(scores), sensitivity)
    assert found == pytest.approx(expected, abs=1e-12)


@few
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), min_size=2, max_size=30), st.data())
def test_no_other_threshold_is_better(rows: list[tuple[bool, int]], data: st.DataObject) -> None:
    positive = np.array([True, False, *(found for found, _ in rows)])
    scores = np.array([3, 5, *(score for _, score in rows)]) / 8
    sensitivity = data.draw(st.none() | st.floats(0.01, 1))
    found = choose_threshold(positive, scores, sensitivity)

    def measure(threshold: float) -> tuple[float, float]:
        above = scores >= threshold
        return above[positive].mean(), (~above)[~positive].mean()

    others = [measure(threshold) for threshold in (*np.unique(scores), 1.1)]
    reached, specific = measure(found)
    if sensitivity is None:
        best = max(a + b for a, b in others)
        assert reached + specific == pytest.approx(best)
        assert specific == max(b for a, b in others if a + b > best - 1e-9)
    else:
        assert reached >= sensitivity
        assert specific == max(b for a, b in others if a >= sensitivity)


@pytest.mark.parametrize("lower", [0.0, 0.25, 1 - 2**-53])
def test_a_threshold_between_neighboring_numbers_is_above_the_lower(lower: float) -> None:
    scores = np.array([lower, np.nextafter(lower, 2)])
    found = choose_threshold(np.array([False, True]), scores)
    assert ((scores >= found) == [False, True]).all()
    worst = choose_threshold(np.array([True, False]), np.array([0.5, 1.0]))
    assert worst > 1, "nothing is predicted positive"


@pytest.mark.parametrize("task", [TWO, LABELS])
@pytest.mark.parametrize("sensitivity", [0.5, 0.8, 0.95, 1.0])
def test_the_wanted_sensitivity_is_reached_on_the_validation_set(
    task: Task, sensitivity: float
) -> None:
    targets, values = draw_usable(task, seed=3, rows=90)
    found = fit_calibration(task, targets, values, sensitivity=sensitivity)
    assert (found.rule, found.sensitivity) == ("sensitivity", sensitivity)
    decided = found.decide(found.apply(values)).reshape(len(values), -1)
    for number, column in enumerate(list_threshold_columns(task)):
        positive = mark_positives(task, targets, column)
        reached = decided[positive == 1, number].mean()
        assert reached == found.reached[number][0] >= sensitivity


def test_more_than_two_classes_have_no_threshold() -> None:
    targets, values = draw_usable(THREE, seed=0)
    found = fit_calibration(THREE, targets, values)
    assert (found.thresholds, found.reached) == ((), ())
    calibrated = found.apply(values)
    np.testing.assert_array_equal(found.decide(calibrated), calibrated.argmax(axis=1))


def test_decisions_follow_the_thresholds() -> None:
    two = Calibration((1.0,), (0.3,), "youden")
    assert two.decide([[0.8, 0.2], [0.7, 0.3], [0.4, 0.6]]).tolist() == [0, 1, 1]
    labels = Calibration((1.0, 1.0), (0.3, 0.9), "youden")
    assert labels.decide([[0.2, 0.95], [0.5, 0.5]]).tolist() == [[0, 1], [1, 0]]
    one = Calibration((1.0,), (0.3,), "youden")
    assert one.decide([[0.2], [0.4]]).tolist() == [[0], [1]], "a single label"


# --- patients ------------------------------------------------------------------------------------


def test_a_patients_slides_count_as_in_an_evaluation() -> None:
    random = np.random.default_rng(0)
    patient = np.repeat(np.arange(40), random.integers(1, 4, 40))
    label = patient % 2
    p = sigmoid(2.5 * random.standard_normal(len(patient)) + 2 * label - 1)
    values = np.stack([1 - p, p], axis=1)
    found = fit_calibration(TWO, label[:, None].astype(float), values, patients=patient)
    assert (found.patients, found.slides) == (40, len(patient))

    rows = [(f"s{n}", f"p{i}", "test", 0, 0, "m", i % 2) for n, i in enumerate(patient)]
    table = Predictions.from_rows(TWO.classes, rows, found.apply(values))
    averaged = average_by_patient(table)
    assert METRICS["log_loss"](averaged.label, averaged.values) == pytest.approx(found.log_loss[1])
    above = averaged.values[:, 1] >= found.thresholds[0]
    sensitivity, specificity = above[averaged.label == 1].mean(), (~above)[averaged.label == 0]
    assert found.reached == ((sensitivity, specificity.mean()),)
    by_slide = fit_calibration(
        TWO, label[:, None].astype(float), values, patients=patient, by_slide=True
    )
    assert by_slide.patients == 40
    assert by_slide.temperatures != found.temperatures


# --- what is missing -----------------------------------------------------------------------------


def list_problems(task: Task, targets: Floats, values: Floats, **given: object) -> list[str]:
    with pytest.raises(CohortError) as rejected:
        fit_calibration(task, targets, values, **given)
    return rejected.value.problems


def test_a_validation_set_of_one_class_is_rejected() -> None:
    values = np.tile([0.4, 0.6], (30, 1))
    (problem,) = list_problems(TWO, np.ones((30, 1)), values)
    assert problem == "all are tumor; expected patients of other classes"
    targets = np.zeros((30, 1))
    targets[0] = 1
    (problem,) = list_problems(TWO, targets, values)
    assert problem == "1 patient is tumor and 29 are not; expected at least 2 of both"


def test_too_few_patients_are_rejected_however_many_slides_they_have() -> None:
    targets, values = draw_usable(TWO, seed=0)
    patients = np.arange(len(targets)) % 8  # even ones are of one class
    targets = patients[:, None] % 2.0
    (problem,) = list_problems(TWO, targets, values, patients=patients)
    assert problem == f"it has 8 patients; expected at least {MIN_PATIENTS}"


def test_a_label_without_positives_is_named() -> None:
    targets, values = draw_usable(LABELS, seed=0)
    targets[:, 1] = np.where(targets[:, 1] == 1, np.nan, targets[:, 1])
    known = int((targets[:, 1] == 0).sum())
    problems = list_problems(LABELS, targets, values)
    assert f"0 patients are pr and {known} are not; expected at least 2 of both" in problems


@pytest.mark.parametrize("task", [Regression("ki67"), Ordinal(("low", "mid", "high"))])
def test_other_tasks_cannot_be_calibrated(task: Task) -> None:
    with pytest.raises(OptionError, match=f"{task.kind} cannot be calibrated"):
        fit_calibration(task, np.zeros((30, 1)), np.zeros((30, len(task.prediction_columns))))


@pytest.mark.parametrize("wrong", [0.0, -1.0, 1.5, float("nan")])
def test_a_sensitivity_is_a_share(wrong: float) -> None:
    with pytest.raises(OptionError, match="`sensitivity` is"):
        fit_calibration(TWO, *draw_usable(TWO, seed=0), sensitivity=wrong)


# --- cards ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_a_card_gives_the_calibration_back(task: Task, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    found = fit_calibration(task, *draw_usable(task, seed=1), sensitivity=0.9)
    update_card(folder, calibration=found.to_dict())
    assert Calibration.from_card(read_card(folder), folder) == found


def test_a_card_without_one_says_what_to_do(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    with pytest.raises(ModelFolderError, match=r"is not calibrated; .* leave out `calibrated`"):
        Calibration.from_card(read_card(folder), folder)


@pytest.mark.parametrize(
    "change",
    [
        {"temperatures": []},
        {"temperatures": [-1.0]},
        {"temperatures": ["warm"]},
        {"thresholds": [float("inf")]},
        {"thresholds": None},
        {"rule": "best"},
    ],
)
def test_a_damaged_calibration_is_named(tmp_path: Path, change: dict[str, object]) -> None:
    folder = write_model(tmp_path / "m")
    content = Calibration((1.0,), (0.5,), "youden").to_dict() | change
    card = read_card(folder).model_copy(update={"calibration": content})
    with pytest.raises(ModelFolderError, match="its calibration cannot be read"):
        Calibration.from_card(card, folder)


def test_a_calibration_changes_the_hash_of_a_model_if_it_changes_predictions() -> None:
    found = Calibration((1.5,), (0.4,), "youden")
    assert found.combine_hash("ab") == replace(found, patients=30).combine_hash("ab")
    assert found.combine_hash("ab") != replace(found, thresholds=(0.5,)).combine_hash("ab")
    assert found.combine_hash("ab") != "ab"


# --- predictions ---------------------------------------------------------------------------------


def test_scores_are_of_the_class_that_the_threshold_decides() -> None:
    by_class = np.array([[1.0, 2.0], [4.0, 3.0]], np.float32)
    raw = Prediction.from_output("s", np.array([0.7, 0.3]), by_class[:, 0], by_class, TWO.classes)
    found = Calibration((1.0,), (0.2,), "youden").calibrate(raw, TWO)
    assert (raw.predicted_class, found.predicted_class) == ("normal", "tumor")
    assert (found.label, found.score_class) == (1, 1)
    np.testing.assert_array_equal(found.scores, by_class[:, 1])
    summary = TWO.describe(found)
    assert (summary.predicted, summary.headline, summary.score_column) == ("tumor", "tumor 0.30", 1)
    assert not summary.is_undecided


def test_labels_are_present_from_their_own_threshold_on() -> None:
    values = np.array([0.8, 0.5])
    raw = Prediction("s", LABELS.prediction_columns, values, np.zeros(2, np.float32))
    found = Calibration((1.0, 1.0), (0.9, 0.2), "youden").calibrate(raw, LABELS)
    assert LABELS.describe(raw).predicted == "er, pr"
    summary = LABELS.describe(found)
    assert (summary.predicted, summary.score_column) == ("pr", 1)
    assert [choice.name for choice in summary.values] == ["pr", "er"]


# --- how many patients it takes ------------------------------------------------------------------


def simulate(patients: int, sharpness: float, repeats: int = 100) -> tuple[float, float]:
    """Log loss on new patients before and after, of scores with an AUC of 0.86."""

    def draw_scores(rows: int, seed: int) -> tuple[Floats, Floats]:
        random = np.random.default_rng(seed)
        labels = np.arange(rows) % 2
        p = sigmoid(sharpness * 1.5 * (random.standard_normal(rows) + 1.5 * (labels - 0.5)))
        return labels[:, None].astype(float), np.stack([1 - p, p], axis=1)

    losses = []
    for seed in range(repeats):
        found = fit_calibration(TWO, *draw_scores(patients, seed))
        targets, values = draw_scores(4000, 1000 + seed)
        both = values, found.apply(values)
        losses.append([TWO.validation_loss(targets, each) for each in both])
    before, after = np.mean(losses, axis=0)
    return float(before), float(after)


@pytest.mark.slow
@pytest.mark.parametrize(("patients", "after"), [(20, 0.52), (30, 0.50), (50, 0.48), (100, 0.48)])
def test_the_page_says_what_few_patients_cost(patients: int, after: float) -> None:
    assert simulate(patients, 3.0) == pytest.approx((0.70, after), abs=0.015)
    assert simulate(patients, 1.0) == pytest.approx((0.47, after), abs=0.015)
