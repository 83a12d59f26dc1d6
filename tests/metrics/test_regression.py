"""Metrics of numbers against scikit-learn, scipy and the goldens of their published forms."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as reference

from sacmil.metrics import regression
from sacmil.metrics.label_density import density_weight, fit_density
from sacmil.metrics.regression import mae, pearson, r2, rmse, spearman

few = settings(deadline=None, max_examples=50, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
Rows = tuple[np.ndarray, np.ndarray]

METRICS: dict[str, Callable[..., float]] = {
    "r2": r2,
    "mae": mae,
    "rmse": rmse,
    "pearson": pearson,
    "spearman": spearman,
}
WEIGHTED: dict[str, Callable[..., np.ndarray]] = {
    name: getattr(regression, f"weighted_{name}") for name in METRICS
}
REFERENCES: dict[str, Callable[..., float]] = {
    "r2": reference.r2_score,
    "mae": reference.mean_absolute_error,
    "rmse": reference.root_mean_squared_error,
    "pearson": lambda t, p: stats.pearsonr(t, p).statistic,
    "spearman": lambda t, p: stats.spearmanr(t, p).statistic,
}
NEED_SPREAD_OF = {"r2": (0,), "mae": (), "rmse": (), "pearson": (0, 1), "spearman": (0, 1)}


def parse(text: str) -> np.ndarray:
    """The numbers of a text."""
    return np.array(text.split(), dtype=np.float64)


# targets and predictions of ../shared/golden/targets/regression.npz
TARGETS = parse("""
19.097855413984 23.712895216684 13.947253526006 17.937962782491 39.832409205579
15.044432607468 21.546135288867 50.173852043047 25.87619208878 36.289746063152
26.173767849287 32.39323569961 16.194798479216 9.3313009929284 14.353182327147
14.987103573725 9.5357813714771 26.587291151162 2.6449298978366 15.025032406306
5.6140135611911 34.470715167811 20.128455257836 51.981585305246 7.5702460676473
21.361878653719 3.764593465075 14.690579748808 16.845199741266 13.134323065971
49.555774044235 23.407212829918 6.665690795952 33.103787304011 13.120153895428
1.4866763229102 8.8063824193958 8.7260879491963 5.2566162338429 70.038324044564
3.1130517820405 25.603385996211 9.6200059832595 21.644693661671 48.163213488119
4.5526069704704 9.6882759841583 19.45326682313 34.879088345906 37.98338815364
11.21297599928 47.252926517506 64.733978611639 29.635283264845 36.018316546512
16.159139523385 14.57817287185 10.015446873235 17.007379012159 8.7398517096149
""")
PREDICTIONS = parse("""
22.528745184605 6.2462339403858 15.29446056506 10.466077117167 32.309224040366
23.859794787029 22.401219195924 29.980120013235 16.518549549989 37.845173552524
27.7924526489 8.5173794203395 12.463285696657 8.0374292851382 5.9577615177684
20.643615137315 9.0081670648883 25.588211218928 3.6013037933129 9.6720231471433
1.7076786894178 26.20800355456 14.292352839715 20.071614069847 -10.765501463456
18.405899429645 22.494904366 14.901964131108 18.524129223637 7.4171950753729
29.944341600168 33.709222336599 5.8695072299101 27.167923817392 11.557388417326
0.81259796315842 1.9820190460393 18.121635847776 15.600667861358 48.596543569201
0.057091878727928 20.673821108982 7.0335887742235 31.056768750783 36.321335433732
7.6919170654411 13.732247765136 12.051246191301 21.876300912502 25.203542069032
13.074671105229 25.603750258568 36.125351653636 14.596853987311 23.079581420245
22.731910943344 6.668872984597 14.866859074318 14.297721499709 21.278038444115
""")


@st.composite
def tables(draw: st.DrawFn) -> Rows:
    """Targets and predictions, with ties or without, sometimes constant, sometimes far from 0."""
    random = np.random.default_rng(draw(seeds))
    size, offset = draw(st.integers(1, 25)), draw(st.sampled_from([0, -7, 1_000]))
    if draw(st.booleans()):
        targets, predictions = random.integers(0, draw(st.integers(1, 5)), (2, size)).astype(float)
    else:
        targets, predictions = random.standard_normal((2, size))
    return targets + offset, predictions + offset


def by_reference(name: str, rows: Rows) -> float:
    """The metric by the reference; NaN for constants and without a row."""
    if not len(rows[0]) or any(np.ptp(rows[i]) == 0 for i in NEED_SPREAD_OF[name]):
        return math.nan
    return float(REFERENCES[name](*rows))


@pytest.mark.parametrize("name", METRICS)
@few
@given(tables())
def test_metrics_of_numbers_are_those_of_scikit_learn_and_scipy(name: str, rows: Rows) -> None:
    found = METRICS[name](*rows)
    assert found == pytest.approx(by_reference(name, rows), rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize(
    ("name", "golden"),
    [
        ("r2", 0.48151893168772864),
        ("mae", 8.362158498559292),
        ("rmse", 11.171182550988696),
        ("pearson", 0.7524092331339574),
    ],
)
def test_metrics_of_numbers_are_the_golden_ones(name: str, golden: float) -> None:
    assert METRICS[name](TARGETS, PREDICTIONS) == pytest.approx(golden, abs=1e-9)


def test_spearman_of_rounded_numbers_is_the_golden_one() -> None:
    found = spearman(TARGETS.round(), PREDICTIONS.round())
    assert found == pytest.approx(0.7377464297104799, abs=1e-9)


@pytest.mark.parametrize("name", METRICS)
@few
@given(tables(), seeds)
def test_a_resample_is_the_metric_of_repeated_rows(name: str, rows: Rows, seed: int) -> None:
    size = len(rows[0])
    random = np.random.default_rng(seed)
    counts = np.vstack([random.poisson(1, (4, size)), np.zeros((1, size), int)])
    found = WEIGHTED[name](*rows, counts.astype(np.float64))
    apart = [by_reference(name, (rows[0].repeat(w), rows[1].repeat(w))) for w in counts]
    np.testing.assert_allclose(found, apart, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", METRICS)
def test_blocks_of_resamples_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.random.default_rng(0).poisson(1, (7, 60)).astype(np.float64)
    together = WEIGHTED[name](TARGETS, PREDICTIONS, weights)
    for size in (1, 150):  # one resample at a time, and two
        monkeypatch.setattr(regression, "BLOCK_SIZE", size)
        in_blocks = WEIGHTED[name](TARGETS, PREDICTIONS, weights)
        np.testing.assert_allclose(in_blocks, together, rtol=1e-12)
    assert WEIGHTED[name](TARGETS, PREDICTIONS, weights[:0]).shape == (0,)


@pytest.mark.parametrize("name", ["r2", "pearson", "spearman"])
def test_one_row_repeated_is_nan_and_not_rounding_noise(name: str) -> None:
    targets, predictions = np.array([0.1, 0.7, 1e9]), np.array([0.3, 0.9, -1e9])
    weights = np.array([[3.0, 0, 0], [0, 7, 0], [0, 0, 11], [1, 1, 0]])
    is_nan = np.isnan(WEIGHTED[name](targets, predictions, weights))
    assert is_nan.tolist() == [True, True, True, False]


@pytest.mark.parametrize("name", ["r2", "pearson", "spearman"])
def test_a_large_offset_costs_no_precision(name: str) -> None:
    random = np.random.default_rng(0)
    targets, predictions = random.integers(0, 9, (2, 40)).astype(np.float64)
    weights = random.poisson(1, (5, 40)).astype(np.float64)
    near = WEIGHTED[name](targets, predictions, weights)
    far = WEIGHTED[name](targets + 2**45, predictions + 2**45, weights)
    np.testing.assert_allclose(far, near, rtol=1e-12)


@pytest.mark.parametrize("name", ["r2", "pearson", "spearman"])
def test_an_outlier_that_is_not_in_the_resample_costs_no_precision(name: str) -> None:
    targets, predictions = np.array([0.1, 0.2, 0.4, 1e15]), np.array([0.1, 0.3, 0.2, -1e15])
    found = WEIGHTED[name](targets, predictions, np.array([[2.0, 1, 1, 0]]))
    near = METRICS[name](targets[[0, 0, 1, 2]], predictions[[0, 0, 1, 2]])
    assert found == pytest.approx([near], rel=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_without_rows_metrics_of_numbers_are_nan(name: str) -> None:
    assert math.isnan(METRICS[name]([], []))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_makes_the_metric_nan(name: str, wrong: float) -> None:
    assert math.isnan(METRICS[name]([1, 2, 3], [1, wrong, 2]))
    assert math.isnan(METRICS[name]([1, wrong, 3], [1, 3, 2]))


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_correlations_with_a_constant_are_nan_on_either_side(name: str) -> None:
    assert math.isnan(METRICS[name]([0.1, 0.1, 0.1], [1, 2, 3]))
    assert math.isnan(METRICS[name]([1, 2, 3], [0.1, 0.1, 0.1]))


def test_r2_is_nan_for_constant_targets_only() -> None:
    assert math.isnan(r2([0.1, 0.1, 0.1], [1, 2, 3]))
    assert r2([1, 2, 3], [1, 1, 1]) == pytest.approx(-1.5)


@few
@given(tables())
def test_r2_of_the_mean_is_0_and_of_the_truth_is_1(rows: Rows) -> None:
    targets = rows[0]
    assume(np.ptp(targets) > 0)
    assert r2(targets, np.full_like(targets, targets.mean())) == pytest.approx(0, abs=1e-9)
    assert r2(targets, targets) == 1


@few
@given(tables(), st.floats(0.1, 10), st.floats(-100, 100))
def test_pearson_keeps_its_size_under_affine_maps(rows: Rows, slope: float, shift: float) -> None:
    targets, predictions = rows
    before = pearson(targets, predictions)
    up = pearson(targets * slope + shift, predictions)
    down = pearson(targets, shift - slope * predictions)
    if math.isnan(before):  # rounding of the map may not make a constant vary
        assert math.isnan(up)
        assert math.isnan(down)
    else:
        assert (up, down) == pytest.approx((before, -before), abs=1e-8)


@few
@given(tables())
def test_spearman_depends_on_the_order_only(rows: Rows) -> None:
    targets, predictions = rows
    before = spearman(targets, predictions)
    assert spearman(np.arctan(targets / 1_000), predictions**3) == pytest.approx(
        before, abs=1e-12, nan_ok=True
    )
    assert spearman(-targets, predictions) == pytest.approx(-before, abs=1e-12, nan_ok=True)


def test_correlations_do_not_exceed_1() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        values = random.standard_normal(5)
        assert -1 <= pearson(values, -3 * values) <= pearson(values, values) <= 1


@few
@given(tables(), st.integers(-5, 5))
def test_errors_grow_with_scale_and_not_with_offset(rows: Rows, shift: int) -> None:
    targets, predictions = rows
    for error in (mae, rmse):
        before = error(targets, predictions)
        assert error(targets + shift, predictions + shift) == pytest.approx(before, abs=1e-9)
        assert error(3 * targets, 3 * predictions) == pytest.approx(3 * before, abs=1e-9)
    assert mae(targets, predictions) <= rmse(targets, predictions) * (1 + 1e-12)


def test_the_error_weighted_by_label_density_is_the_golden_one() -> None:
    # the published code has the weights in float32
    weights = density_weight(TARGETS, *fit_density(TARGETS)).astype(np.float32).astype(np.float64)
    found = np.mean((1 + weights) * np.square(PREDICTIONS - TARGETS))
    assert found == pytest.approx(132.2050781759739, abs=1e-9)
