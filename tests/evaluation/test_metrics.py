"""Metrics against loops that follow their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacmil.evaluation.metrics import accuracy, auc

few = settings(deadline=None, max_examples=80, derandomize=True)
scored = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=1, max_size=20)


def pairs_won(labels: list[int], scores: list[float]) -> float:
    """The share of (positive, negative) pairs in the right order, ties half."""
    positive = [s for y, s in zip(labels, scores, strict=True) if y]
    negative = [s for y, s in zip(labels, scores, strict=True) if not y]
    won = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    return won / (len(positive) * len(negative)) if positive and negative else math.nan


@few
@given(scored)
def test_auc_is_the_share_of_pairs_in_order_with_ties_half(rows: list[tuple[int, int]]) -> None:
    labels, scores = map(list, zip(*rows, strict=True))
    assert auc(labels, scores) == pytest.approx(pairs_won(labels, scores), nan_ok=True)


@few
@given(scored)
def test_auc_of_turned_scores_is_the_rest_to_one(rows: list[tuple[int, int]]) -> None:
    labels, scores = map(np.array, zip(*rows, strict=True))
    assert auc(labels, -scores) == pytest.approx(1 - auc(labels, scores), nan_ok=True)


@few
@given(scored)
def test_auc_depends_on_the_order_of_scores_only(rows: list[tuple[int, int]]) -> None:
    labels, scores = map(np.array, zip(*rows, strict=True))
    assert auc(labels, np.exp(scores)) == pytest.approx(auc(labels, scores), nan_ok=True)


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1], [True]])
def test_auc_of_one_class_is_nan(labels: list[int]) -> None:
    assert math.isnan(auc(labels, np.arange(len(labels))))


def test_auc_of_a_nan_score_is_nan() -> None:
    assert math.isnan(auc([0, 1, 1], [0.1, math.nan, 0.3]))


@few
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20))
def test_accuracy_is_the_share_that_agrees(rows: list[tuple[int, int]]) -> None:
    labels, predicted = map(list, zip(*rows, strict=True))
    assert accuracy(labels, predicted) == sum(a == b for a, b in rows) / len(rows)
