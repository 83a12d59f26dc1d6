"""Label distribution smoothing against the published numbers and a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacmil.metrics.label_density import density_weight, fit_density, smoothing_kernel

few = settings(deadline=None, max_examples=30, derandomize=True)


def parse(text: str) -> np.ndarray:
    """The numbers of a text."""
    return np.array(text.split(), dtype=np.float64)


# of ../shared/golden/targets/regression.npz: marugoto's own code
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
EDGES = parse("""
1.4866763229102 11.279768854575 21.07286138624 30.865953917905
40.65904644957 50.452138981234 60.245231512899 70.038324044564
""")
SMOOTH_COUNTS = parse("""
50 51 50 50 36 50 51 22 51 36 51 36 50 42 50 50 42 51 42 50
42 36 50 13 42 51 42 50 50 50 22 51 42 36 50 31 42 42 42 6
42 51 42 51 22 42 42 50 36 36 42 22 6 51 36 50 50 42 50 42
""")
KERNEL = [0.8582852377730947, 0.9458276490853569, 1.0, 0.9458276490853569, 0.8582852377730947]


def test_the_kernel_is_the_published_one() -> None:
    assert smoothing_kernel() == pytest.approx(KERNEL, abs=1e-12)


def test_edges_and_weights_are_the_published_ones() -> None:
    edges, bin_weights = fit_density(TARGETS)
    assert edges == pytest.approx(EDGES, abs=1e-9)
    assert 1 / density_weight(TARGETS, edges, bin_weights) == pytest.approx(SMOOTH_COUNTS)


def smooth_count(value: float, targets: np.ndarray, edges: np.ndarray) -> int:
    """The smoothed count of a value's bin, by the definition."""

    def find_bin(number: float) -> int:
        return next(i for i, edge in enumerate(edges) if number <= edge)

    neighbors = range(find_bin(value) - 2, find_bin(value) + 3)
    bins = [find_bin(target) for target in targets]
    return int(sum(k * bins.count(i) for k, i in zip(KERNEL, neighbors, strict=True)))


@few
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_a_weight_is_one_over_the_smoothed_count_of_its_bin(seed: int, size: int) -> None:
    targets = np.random.default_rng(seed).gamma(1, 1, size)
    edges, bin_weights = fit_density(targets)
    found = density_weight(targets, edges, bin_weights)
    assert found == pytest.approx([1 / smooth_count(t, targets, edges) for t in targets])


def test_a_value_on_an_edge_is_in_the_bin_below() -> None:
    edges, bin_weights = np.array([0.0, 1, 2]), np.array([0.1, 0.2, 0.3])
    found = density_weight([0, 0.5, 1, 1.5, 2], edges, bin_weights)
    assert found.tolist() == [0.1, 0.2, 0.2, 0.3, 0.3]


def test_values_outside_the_training_range_weigh_as_the_nearest_bin() -> None:
    edges, bin_weights = fit_density(TARGETS)
    found = density_weight([-1e9, 1e9, np.inf], edges, bin_weights)
    assert found.tolist() == [bin_weights[0], bin_weights[-1], bin_weights[-1]]
    assert bin_weights[0] != bin_weights[-1]


def test_a_value_far_from_every_training_target_weighs_one() -> None:
    targets = np.r_[np.linspace(0, 1, 30), np.linspace(99, 100, 30)]
    edges, bin_weights = fit_density(targets)
    assert density_weight(50, edges, bin_weights) == 1
    assert density_weight(targets, edges, bin_weights).max() < 0.1


@pytest.mark.parametrize("size", [1, 2, 7])
def test_equal_targets_share_the_weight_of_one(size: int) -> None:
    targets = np.full(size, 3.7)
    assert density_weight(targets, *fit_density(targets)).sum() == pytest.approx(1)


def test_rare_targets_weigh_more() -> None:
    edges, bin_weights = fit_density(TARGETS)
    common, rare = density_weight(np.quantile(TARGETS, [0.5, 1]), edges, bin_weights)
    assert rare > 5 * common


def test_weights_have_the_shape_of_the_values() -> None:
    edges, bin_weights = fit_density(TARGETS)
    found = density_weight(TARGETS.reshape(20, 3), edges, bin_weights)
    assert found.shape == (20, 3)
    assert found.ravel().tolist() == density_weight(TARGETS, edges, bin_weights).tolist()
