"""Metrics of several labels, each against scikit-learn on the rows where it is not missing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from sacmil.metrics import multilabel
from sacmil.metrics.multilabel import weighted_label_auc, weighted_label_f1, weighted_macro_f1

few = settings(deadline=None, max_examples=40, derandomize=True)
Table = tuple[np.ndarray, np.ndarray, np.ndarray]
Weighted = Callable[..., np.ndarray]
NAN = math.nan

NAMES = ["auc", "average_precision", "f1"]
BY_LABEL: dict[str, Weighted] = {n: getattr(multilabel, f"weighted_label_{n}") for n in NAMES}
MACRO: dict[str, Weighted] = {n: getattr(multilabel, f"weighted_macro_{n}") for n in NAMES}


@st.composite
def label_tables(draw: st.DrawFn) -> Table:
    """Labels with missing cells, probabilities with ties, and four resamples, one of them empty."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(st.integers(1, 20)), draw(st.integers(1, 4))
    targets = (random.random(shape) < draw(st.sampled_from([0.1, 0.5]))).astype(np.float64)
    targets[random.random(shape) < draw(st.sampled_from([0, 0.3, 0.9]))] = np.nan
    weights = random.poisson(1, (4, shape[0])).astype(np.float64)
    weights[-1] = 0
    return targets, random.integers(0, 5, shape) / 4, weights


def observed_rows(case: Table, resample: int, label: int) -> tuple[np.ndarray, np.ndarray]:
    """The repeated rows of a resample where a label is not missing."""
    targets, probabilities, weights = case
    counts = np.where(np.isnan(targets[:, label]), 0, weights[resample]).astype(int)
    return targets[:, label].repeat(counts), probabilities[:, label].repeat(counts)


def has_both(labels: np.ndarray) -> bool:
    return 0 < labels.sum() < len(labels)


def by_scikit_learn(name: str, labels: np.ndarray, scores: np.ndarray) -> float:
    if name == "f1":
        is_predicted = scores >= 0.5
        defined = labels.any() or is_predicted.any()
        return float(reference.f1_score(labels, is_predicted)) if defined else NAN
    if not has_both(labels):
        return NAN
    metric = {"auc": reference.roc_auc_score, "average_precision": None}[name]
    return float((metric or reference.average_precision_score)(labels, scores))


@pytest.mark.parametrize("name", NAMES)
@few
@given(label_tables())
def test_a_label_has_the_metric_of_repeated_rows_where_it_is_observed(
    name: str, case: Table
) -> None:
    found = BY_LABEL[name](*case)
    expected = [
        [by_scikit_learn(name, *observed_rows(case, b, label)) for label in range(case[0].shape[1])]
        for b in range(4)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@few
@given(label_tables())
def test_the_macro_mean_is_over_labels_with_both_values(name: str, case: Table) -> None:
    for b, found in enumerate(MACRO[name](*case)):
        rows = [observed_rows(case, b, label) for label in range(case[0].shape[1])]
        values = [by_scikit_learn(name, *row) for row in rows if has_both(row[0])]
        expected = np.mean(values) if values else NAN
        assert found == pytest.approx(expected, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("name", NAMES)
@few
@given(label_tables())
def test_the_probability_of_a_missing_label_changes_nothing(name: str, case: Table) -> None:
    targets, probabilities, weights = case
    other = np.where(np.isnan(targets), 1 - probabilities, probabilities)
    unknown = np.where(np.isnan(targets), np.nan, probabilities)
    for metrics in (BY_LABEL, MACRO):
        expected = metrics[name](*case)
        np.testing.assert_array_equal(metrics[name](targets, other, weights), expected)
        np.testing.assert_array_equal(metrics[name](targets, unknown, weights), expected)


@pytest.mark.parametrize("name", NAMES)
def test_perfect_labels_score_1_and_a_label_that_is_missing_is_left_out(name: str) -> None:
    targets = np.array([[0, 1, NAN], [1, 0, NAN], [1, NAN, NAN]])
    probabilities = np.nan_to_num(targets, nan=0.2)
    found = BY_LABEL[name](targets, probabilities, np.ones((1, 3)))
    np.testing.assert_array_equal(found, [[1, 1, NAN]])
    assert MACRO[name](targets, probabilities, np.ones((1, 3))).tolist() == [1]


@pytest.mark.parametrize("name", NAMES)
def test_without_any_label_of_both_values_the_macro_mean_is_nan(name: str) -> None:
    targets = np.array([[0, 1.0], [0, 1]])
    probabilities = np.array([[0.9, 0.2], [0.1, 0.7]])
    assert np.isnan(MACRO[name](targets, probabilities, np.ones((3, 2)))).all()


@pytest.mark.parametrize("name", ["auc", "average_precision"])
def test_an_undefined_probability_is_not_left_out_of_the_macro_mean(name: str) -> None:
    targets = np.array([[0, 0.0], [1, 1]])
    probabilities = np.array([[0.1, NAN], [0.9, 0.8]])
    assert np.isnan(MACRO[name](targets, probabilities, np.ones((1, 2)))).all()


def test_a_label_with_one_value_has_f1_of_its_own_and_none_in_the_mean() -> None:
    targets = np.array([[1, 0.0], [1, 1], [1, 1]])
    probabilities = np.array([[0.9, 0.1], [0.2, 0.9], [0.3, 0.2]])
    once = np.ones((1, 3))
    assert weighted_label_f1(targets, probabilities, once)[0] == pytest.approx([1 / 2, 2 / 3])
    assert weighted_macro_f1(targets, probabilities, once) == pytest.approx([2 / 3])


def test_each_label_has_its_own_threshold_which_itself_is_positive() -> None:
    targets = np.array([[0, 0.0], [1, 1]])
    probabilities = np.array([[0.3, 0.3], [0.6, 0.4]])
    once, thresholds = np.ones((1, 2)), np.array([0.3, 0.4])
    assert weighted_label_f1(targets, probabilities, once).tolist() == [[1, 0]]
    found = weighted_label_f1(targets, probabilities, once, thresholds)
    assert found[0] == pytest.approx([2 / 3, 1])
    assert weighted_macro_f1(targets, probabilities, once, thresholds) == pytest.approx([5 / 6])


def test_labels_are_not_mixed() -> None:
    targets = np.array([[0, 1.0], [1, 0]])
    scores = np.array([[0.1, 0.2], [0.9, 0.8]])
    assert weighted_label_auc(targets, scores, np.ones((2, 2))).tolist() == [[1, 0], [1, 0]]
