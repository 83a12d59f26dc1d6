"""Metrics of ordered levels against scikit-learn, the goldens and hand calculation."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn import metrics as reference

from sacmil.metrics import ordinal
from sacmil.metrics.ordinal import (
    mae,
    predict_level,
    quadratic_kappa,
    weighted_quadratic_kappa,
    weighted_threshold_auc,
)

few = settings(deadline=None, max_examples=50, derandomize=True)


def parse(text: str) -> np.ndarray:
    """The numbers of a text."""
    return np.array(text.split(), dtype=np.float64)


# of ../shared/golden/targets/ordinal.npz, rounded; the labels are coral-pytorch's own
LOGITS = parse("""
-1.19 0.91 -0.952 -1.73 0.648 -0.625 -1.43 -3.03
-0.605 0.736 -1.26 -0.0912 0.926 0.162 -2.55 -1.04
-0.125 2.19 1.3 -0.617 -0.114 0.888 -1.61 0.324
2.3 -0.825 -0.453 -1.03 2.27 -0.531 -0.475 -3.65
0.705 1.34 -0.963 1.5 -0.272 1.06 -2.63 0.134
""").reshape(10, 4)
CORN_LABELS = [0, 1, 0, 1, 0, 0, 1, 1, 2, 0]
CORAL_LABELS = [1, 1, 1, 2, 2, 2, 1, 1, 3, 2]

Graded = tuple[np.ndarray, np.ndarray, int]


@st.composite
def level_pairs(draw: st.DrawFn) -> Graded:
    """Levels, not always all of them, predicted levels, and how many there are."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size, levels = draw(st.integers(1, 25)), draw(st.integers(2, 5))
    among = random.choice(levels, draw(st.integers(1, levels)), replace=False)
    return random.choice(among, size), random.choice(among, size), levels


def kappa_by_scikit_learn(labels: np.ndarray, predicted: np.ndarray, levels: int) -> float:
    if not len(labels) or len({*labels, *predicted}) == 1:
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of levels that are not there
        return float(
            reference.cohen_kappa_score(
                labels, predicted, weights="quadratic", labels=range(levels)
            )
        )


def draw_weights(size: int, seed: int) -> np.ndarray:
    """Three random resamples and an empty one."""
    drawn = np.random.default_rng(seed).poisson(1, (3, size))
    return np.vstack([drawn, np.zeros((1, size), int)])


def test_labels_of_corn_and_coral_are_the_golden_ones() -> None:
    assert predict_level(expit(LOGITS).cumprod(1)).tolist() == CORN_LABELS
    assert predict_level(expit(LOGITS)).tolist() == CORAL_LABELS


def test_a_probability_of_one_half_passes_no_threshold() -> None:
    assert predict_level([[0.5, 0.5], [0.500001, 0.5], [0.4, 0.6]]).tolist() == [0, 1, 1]


@few
@given(level_pairs())
def test_kappa_is_that_of_scikit_learn(case: Graded) -> None:
    found = quadratic_kappa(*case)
    assert found == pytest.approx(kappa_by_scikit_learn(*case), abs=1e-9, nan_ok=True)


@few
@given(level_pairs(), st.integers(0, 2**32 - 1))
def test_resamples_of_levels_are_repeated_rows(case: Graded, seed: int) -> None:
    labels, predicted, levels = case
    counts = draw_weights(len(labels), seed)
    repeated = [(labels.repeat(w), predicted.repeat(w)) for w in counts]
    weights = counts.astype(np.float64)
    np.testing.assert_allclose(
        weighted_quadratic_kappa(labels, predicted, weights, levels),
        [kappa_by_scikit_learn(y, guess, levels) for y, guess in repeated],
        atol=1e-9,
    )
    np.testing.assert_allclose(
        ordinal.weighted_mae(labels, predicted, weights),
        [np.abs(y - guess).mean() if len(y) else math.nan for y, guess in repeated],
        atol=1e-9,
    )


@few
@given(level_pairs(), st.integers(0, 2**32 - 1))
def test_auc_of_a_threshold_is_that_of_scikit_learn(case: Graded, seed: int) -> None:
    labels, scores, levels = case  # levels as scores: many ties
    counts = draw_weights(len(labels), seed)
    for k in range(levels - 1):
        found = weighted_threshold_auc(
            labels, scores.astype(np.float64), counts.astype(np.float64), k
        )
        for value, w in zip(found, counts, strict=True):
            above = labels.repeat(w) > k
            expected = (
                reference.roc_auc_score(above, scores.repeat(w))
                if 0 < above.sum() < len(above)
                else math.nan
            )
            assert value == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_kappa_of_perfect_levels_is_1_and_of_opposite_ones_is_minus_1() -> None:
    labels = np.array([0, 0, 1, 2, 3, 3])
    assert quadratic_kappa(labels, labels, 4) == pytest.approx(1)
    assert quadratic_kappa([0, 3, 0, 3], [3, 0, 3, 0], 4) == pytest.approx(-1)


def test_kappa_of_random_levels_is_0_on_average() -> None:
    random = np.random.default_rng(0)
    labels = random.choice(4, 100, p=[0.5, 0.3, 0.1, 0.1])
    found = [quadratic_kappa(labels, random.permutation(labels), 4) for _ in range(400)]
    assert np.mean(found) == pytest.approx(0, abs=4 * np.std(found) / 20)
    assert 0.05 < np.std(found) < 0.2


def test_kappa_by_hand() -> None:
    # squared distances 0 + 1 + 4 in 3 rows; 0 + 4 + 9 + 2 (1 + 1 + 4) in the 9 pairs
    assert quadratic_kappa([0, 1, 1], [0, 2, 3], 4) == pytest.approx(1 - 3 * 5 / 25)


def test_kappa_is_nan_only_where_no_disagreement_is_expected() -> None:
    assert math.isnan(quadratic_kappa([2, 2, 2], [2, 2, 2], 4))
    assert math.isnan(quadratic_kappa([], [], 4))
    assert quadratic_kappa([2, 2, 2], [1, 1, 1], 4) == pytest.approx(0)
    assert quadratic_kappa([2, 2, 2], [2, 2, 1], 4) == pytest.approx(0)


def test_mean_distance_of_levels_by_hand() -> None:
    assert mae([0, 1, 3], [2, 1, 2]) == pytest.approx(1)
    assert math.isnan(mae([], []))
