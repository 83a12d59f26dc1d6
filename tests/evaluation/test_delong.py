"""DeLong's variance against placement values counted pair by pair, and worked examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from sacmil.evaluation.delong import delong_test, delong_variance
from sacmil.evaluation.metrics import auc

few = settings(deadline=None, max_examples=80, derandomize=True)


def placements(labels: np.ndarray, scores: np.ndarray) -> tuple[list[float], list[float]]:
    """Shares of negatives below each positive, and of positives above each negative."""
    positive, negative = scores[labels == 1], scores[labels == 0]
    won = [[(p > n) + 0.5 * (p == n) for n in negative] for p in positive]
    return [float(np.mean(row)) for row in won], [float(np.mean(c)) for c in zip(*won, strict=True)]


def covariance(a: list[float], b: list[float]) -> float:
    """Of two samples, divided by one less than their size."""
    pairs = zip(a, b, strict=True)
    return sum((x - np.mean(a)) * (y - np.mean(b)) for x, y in pairs) / (len(a) - 1)


@st.composite
def two_scores(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    labels = np.repeat([0, 1], [draw(st.integers(2, 9)), draw(st.integers(2, 9))])
    first, second = random.integers(0, draw(st.integers(2, 20)), (2, len(labels)))
    return random.permutation(labels), first.astype(float), second.astype(float)


@few
@given(two_scores())
def test_variance_and_p_are_those_of_placement_values(
    case: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    labels, *scores = case
    (a10, a01), (b10, b01) = (placements(labels, s) for s in scores)
    m, n = len(a10), len(a01)
    own = [covariance(x, x) / m + covariance(y, y) / n for x, y in ((a10, a01), (b10, b01))]
    shared = covariance(a10, b10) / m + covariance(a01, b01) / n
    for s, variance in zip(scores, own, strict=True):
        assert delong_variance(labels, s) == pytest.approx((auc(labels, s), variance), abs=1e-12)
    found = delong_test(labels, *scores)
    expected = own[0] + own[1] - 2 * shared
    assert found.variance == pytest.approx(expected, abs=1e-12)
    if expected > 1e-9:
        z = (np.mean(a10) - np.mean(b10)) / math.sqrt(expected)
        assert found.p == pytest.approx(2 * norm.sf(abs(z)), abs=1e-9)


def test_a_worked_example() -> None:
    # positives 3, 5 over negatives 1, 4: placements 1/2, 1 and 1, 1/2;
    # each has variance 1/8, so the variance is (1/8)/2 + (1/8)/2
    area, variance = delong_variance([0, 1, 0, 1], [1, 3, 4, 5])
    assert (area, variance) == pytest.approx((0.75, 0.125))


def test_two_worked_together() -> None:
    # the second score is perfect and has no spread: z = -0.25 / sqrt(0.125)
    found = delong_test([0, 1, 0, 1], [1, 3, 4, 5], [1, 2, 1, 2])
    assert found.z == pytest.approx(-math.sqrt(0.5))
    assert found.p == pytest.approx(0.479500122, abs=1e-9)


@few
@given(two_scores())
def test_a_score_does_not_differ_from_itself(
    case: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    labels, scores, _ = case
    assert delong_test(labels, scores, np.exp(scores / 20)).p == 1


@few
@given(two_scores())
def test_the_order_of_the_two_turns_the_sign_only(
    case: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    labels, first, second = case
    one, other = delong_test(labels, first, second), delong_test(labels, second, first)
    assert one.p == pytest.approx(other.p, nan_ok=True)
    assert one.z == pytest.approx(-other.z, nan_ok=True)


def test_what_never_varies_cannot_be_tested() -> None:
    labels = [0, 0, 1, 1]
    assert math.isnan(delong_test(labels, [0, 0, 1, 1], [1, 1, 0, 0]).p)


@pytest.mark.parametrize("labels", [[0, 0, 1], [1, 1, 1], [0, 0, 0]])
def test_a_class_of_fewer_than_two_has_no_variance(labels: list[int]) -> None:
    assert math.isnan(delong_variance(labels, [1, 2, 3])[1])
    assert math.isnan(delong_test(labels, [1, 2, 3], [3, 1, 2]).p)
