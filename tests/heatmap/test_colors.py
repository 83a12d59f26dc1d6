"""The colour scale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator
from scipy.stats import rankdata

from sacmil.errors import ConfigError, RunError
from sacmil.heatmap import normalize_scores
from sacmil.heatmap.colors import (
    COLOR_SCALE,
    DIVERGING_COLOR_SCALE,
    apply_color_scale,
    to_scale_positions,
)

SCALE_PATH = (
    (0.30, 0.14, 278),
    (0.45, 0.15, 262),
    (0.60, 0.12, 225),
    (0.72, 0.13, 175),
    (0.83, 0.18, 140),
    (0.95, 0.19, 108),
)
# lightness, chroma and hue in degrees, from the lowest score to the highest
DIVERGING_HALF = ((0.42, 0.165), (0.70, 0.13), (0.97, 0.0))
# lightness and chroma, from either end to zero
BLUE, RED = 260, 27
TO_CONES = np.array(
    [
        [1.0, 0.3963377774, 0.2158037573],
        [1.0, -0.1055613458, -0.0638541728],
        [1.0, -0.0894841775, -1.2914855480],
    ]
)
TO_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)  # from OKLab over the responses of the eye's cones to linear RGB


def to_srgb(oklab: np.ndarray) -> np.ndarray:
    linear = np.clip((oklab @ TO_CONES.T) ** 3 @ TO_LINEAR.T, 0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def make_even_path(points: np.ndarray, count: int) -> np.ndarray:
    """Return (count, 3) OKLab at even distances along (K, 3) lightness, chroma and hue."""
    light, chroma, hue = points.T
    knots = np.stack([light, chroma * np.cos(np.radians(hue)), chroma * np.sin(np.radians(hue))], 1)
    path = PchipInterpolator(np.linspace(0, 1, len(knots)), knots)
    dense = path(np.linspace(0, 1, 4096))
    lengths = np.append(0, np.cumsum(np.linalg.norm(np.diff(dense, axis=0), axis=1)))
    even = np.interp(np.linspace(0, lengths[-1], count), lengths, np.linspace(0, 1, 4096))
    return path(even)


def test_the_scale_is_an_even_path_through_oklab() -> None:
    path = make_even_path(np.array(SCALE_PATH), 256)
    assert ((to_srgb(path) * 255 + 0.5).astype(np.uint8) == COLOR_SCALE).all()


def test_the_diverging_scale_is_an_even_path_to_white_and_back() -> None:
    blue, red = (
        make_even_path(np.array([(*point, hue) for point in DIVERGING_HALF]), 129)
        for hue in (BLUE, RED)
    )
    path = np.concatenate([blue, red[-2::-1]])
    assert ((to_srgb(path) * 255 + 0.5).astype(np.uint8) == DIVERGING_COLOR_SCALE).all()


def to_cielab(rgb: np.ndarray) -> np.ndarray:
    """Convert to CIELAB (D65), a space other than the one the scale was built in."""
    s = rgb / 255
    linear = np.where(s <= 0.04045, s / 12.92, ((s + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    t = linear @ np.array(to_xyz).T / [0.9505, 1.0, 1.089]
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.stack(
        [116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1
    )


def test_a_higher_score_is_always_lighter() -> None:
    light = to_cielab(COLOR_SCALE[::8].astype(float))[:, 0]
    assert (np.diff(light) > 0.5).all()


def test_steps_of_the_scale_look_alike() -> None:
    steps = np.linalg.norm(np.diff(to_cielab(COLOR_SCALE[::16].astype(float)), axis=0), axis=1)
    assert steps.max() < 2.5 * steps.min()


def test_a_diverging_score_is_darker_the_farther_it_is_from_zero() -> None:
    light = to_cielab(DIVERGING_COLOR_SCALE[::8].astype(float))[:, 0]
    assert (np.diff(light[:17]) > 0.5).all()
    assert (np.diff(light[16:]) < -0.5).all()


def test_what_adds_and_what_takes_away_are_equally_dark() -> None:
    light = to_cielab(DIVERGING_COLOR_SCALE.astype(float))[:, 0]
    assert np.abs(light - light[::-1]).max() < 2.5


def test_zero_is_nearly_white_and_the_ends_are_blue_and_red() -> None:
    low, zero, high = to_cielab(DIVERGING_COLOR_SCALE[[0, 128, 256]].astype(float))
    assert zero[0] > 95
    assert np.abs(zero[1:]).max() < 1
    assert low[2] < -40
    assert high[1] > 40


def test_steps_of_the_diverging_scale_look_alike() -> None:
    lab = to_cielab(DIVERGING_COLOR_SCALE[::16].astype(float))
    steps = np.linalg.norm(np.diff(lab, axis=0), axis=1)
    assert steps.max() < 2 * steps.min()


def test_positions_between_steps_take_the_nearest() -> None:
    scale = COLOR_SCALE
    assert apply_color_scale(np.array([0.0, 0.4 / 255, 0.6 / 255, 1.0])).tolist() == [
        scale[0].tolist(),
        scale[0].tolist(),
        scale[1].tolist(),
        scale[255].tolist(),
    ]


# raw, minmax and rank, against their definitions.


few = settings(deadline=None, max_examples=30, derandomize=True)
scores = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40)


@few
@given(scores)
def test_raw_is_unchanged(values: list[float]) -> None:
    assert normalize_scores(values, "raw").tolist() == values


@few
@given(scores)
def test_minmax_is_the_fraction_between_the_lowest_and_the_highest(values) -> None:
    found = normalize_scores(values, "minmax")
    low, high = min(values), max(values)
    expected = [0.5 if low == high else (v - low) / (high - low) for v in values]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@few
@given(scores)
def test_rank_is_the_mean_rank_between_zero_and_one(values) -> None:
    count = len(values)
    expected = (rankdata(values) - 1) / (count - 1) if count > 1 else [0.5]
    np.testing.assert_allclose(normalize_scores(values, "rank"), expected, atol=1e-12)


@few
@given(scores)
def test_diverging_divides_by_the_largest_and_keeps_signs(values: list[float]) -> None:
    found = normalize_scores(values, "diverging")
    largest = max(map(abs, values)) or 1.0
    np.testing.assert_allclose(found, [v / largest for v in values], atol=1e-12)
    positions, low, high = to_scale_positions(found, "diverging")
    colors = apply_color_scale(positions, DIVERGING_COLOR_SCALE)
    is_zero = np.array(values) == 0
    assert (colors[is_zero] == DIVERGING_COLOR_SCALE[128]).all()
    assert (np.sign(positions - 0.5) * np.sign(values) >= 0).all()
    assert (low, high) == (-1, 1)


@few
@given(scores, st.sampled_from(["raw", "minmax", "rank", "diverging"]))
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
