"""raw, minmax and rank, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from sacmil.errors import ConfigError, RunError
from sacmil.heatmap import normalize_scores
from sacmil.heatmap.normalization import to_scale_positions

scores = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40)


@given(scores)
def test_raw_is_unchanged(values: list[float]) -> None:
    assert normalize_scores(values, "raw").tolist() == values


@given(scores)
def test_minmax_is_the_fraction_between_the_lowest_and_the_highest(values) -> None:
    found = normalize_scores(values, "minmax")
    low, high = min(values), max(values)
    expected = [0.5 if low == high else (v - low) / (high - low) for v in values]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(scores)
def test_rank_is_the_mean_rank_between_zero_and_one(values) -> None:
    count = len(values)
    expected = (rankdata(values) - 1) / (count - 1) if count > 1 else [0.5]
    np.testing.assert_allclose(normalize_scores(values, "rank"), expected, atol=1e-12)


@given(scores, st.sampled_from(["raw", "minmax", "rank"]))
def test_positions_on_the_scale_are_always_between_its_ends(values, normalization) -> None:
    normalized = normalize_scores(values, normalization)
    positions, low, high = to_scale_positions(normalized, normalization)
    assert ((positions >= 0) & (positions <= 1)).all()
    assert low <= high


@pytest.mark.parametrize("normalization", ["minmax", "rank"])
@pytest.mark.parametrize("count", [1, 5])
def test_equal_scores_are_all_a_half(normalization: str, count: int) -> None:
    assert normalize_scores([7.0] * count, normalization).tolist() == [0.5] * count


@pytest.mark.parametrize("normalization", ["minmax", "rank"])
def test_the_largest_difference_of_finite_numbers_does_not_overflow(normalization: str) -> None:
    widest = np.finfo(np.float64).max
    assert normalize_scores([-widest, 0, widest], normalization).tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("values", [[np.nan, 1], [np.inf, 1], [], [[1.0]]])
def test_scores_other_than_one_finite_number_per_tile_are_rejected(values) -> None:
    with pytest.raises(RunError, match="finite number per tile"):
        normalize_scores(values, "rank")


def test_an_unknown_normalization_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="minmax"):
        normalize_scores([1.0], "min-max")
