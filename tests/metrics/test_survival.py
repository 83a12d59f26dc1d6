"""Metrics of survival against the goldens, plain loops over pairs, and what their definitions say.

tests/golden/survival.npz has the arrays of ../shared/golden/targets/{metrics,cindex_edges}.npz that
are inputs or metrics: scikit-survival 0.28.0, lifelines 0.30.3 and statsmodels 0.15.0.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from sacmil.metrics import survival, survival_auc, survival_concordance
from sacmil.metrics.survival import (
    baseline_hazard,
    brier,
    calibrate_at,
    censoring_curve,
    count_at_risk,
    cumulative_auc,
    curve_in_bins,
    default_tau,
    greenwood,
    harrell_c,
    hazard_ratio,
    integrated_brier,
    kaplan_meier,
    log_rank,
    median_survival,
    reference_integrated_brier,
    restricted_mean,
    uno_c,
    weighted_brier,
    weighted_cumulative_auc,
    weighted_harrell,
    weighted_harrell_terms,
    weighted_integrated_brier,
    weighted_uno,
    weighted_uno_terms,
    within_fold_c,
)

few = settings(deadline=None, max_examples=50, derandomize=True)
seeds = st.integers(0, 2**32 - 1)

with np.load(Path(__file__).parents[1] / "golden" / "survival.npz", allow_pickle=False) as file:
    GOLDENS = dict(file)
GOLDEN = {key.split("/")[1]: value for key, value in GOLDENS.items() if key.startswith("metrics/")}
TRAIN = (GOLDEN["train_time"], GOLDEN["train_event"])
TIMES, EVENTS, RISKS = GOLDEN["time"], GOLDEN["event"], GOLDEN["risk"]
EDGES = ["tied_events", "event_censor_same_time", "tied_risk", "nearly_tied"]
EDGES += ["all_but_last_censored"]


class Patients(NamedTuple):
    times: np.ndarray
    events: np.ndarray
    risks: np.ndarray

    def take(self, rows: np.ndarray) -> Patients:
        return Patients(*(column[rows] for column in self))


@st.composite
def patients(draw: st.DrawFn, least: int = 1, most: int = 25) -> Patients:
    """Some patients, with ties of times and risks or without, sometimes without an event."""
    random = np.random.default_rng(draw(seeds))
    size = draw(st.integers(least, most))
    distinct = draw(st.sampled_from([1, 2, 5, 1_000]))
    times = random.integers(0, distinct, size).astype(float)
    events = random.random(size) < draw(st.sampled_from([0, 0.3, 0.7, 1]))
    risks = random.integers(0, distinct, size) / 4
    return Patients(times, events, risks)


def draw_training(seed: int, latest: float = 1_000) -> tuple[np.ndarray, np.ndarray]:
    """Training patients, one of whom has the event after all others."""
    random = np.random.default_rng(seed)
    times = np.append(random.integers(0, random.choice([2, 5, 1_000]), 30), latest).astype(float)
    return times, np.append(random.random(30) < 0.5, [True])


def close(found: object, expected: object, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(
        np.asarray(found, float), np.asarray(expected, float), rtol=0, atol=tolerance
    )


# --- plain loops ---------------------------------------------------------------------------------


def share_of(first: float, second: float) -> float:
    return 0.5 if abs(first - second) <= 1e-8 else float(first > second)


def count_pairs(
    p: Patients, importance: Callable[[float], float] = lambda time: 1.0
) -> tuple[float, float]:
    """Pairs in the right order, and all pairs, by the definition."""
    right = total = 0.0
    for i in range(len(p.times)):
        for j in range(len(p.times)):
            is_later = p.times[j] > p.times[i]
            is_censored_then = p.times[j] == p.times[i] and not p.events[j]
            if i != j and p.events[i] and (is_later or is_censored_then):
                right += importance(p.times[i]) * share_of(p.risks[i], p.risks[j])
                total += importance(p.times[i])
    return right, total


def censoring_by_loop(train: tuple[np.ndarray, np.ndarray], at: float) -> float:
    times, events = train
    share = 1.0
    for time in np.unique(times[times <= at]):
        eligible = (times >= time).sum() - ((times == time) & events).sum()
        share *= 1 - ((times == time) & ~events).sum() / eligible if eligible else 1
    return share


def auc_by_loop(train: tuple[np.ndarray, np.ndarray], p: Patients, at: float) -> float:
    right = total = 0.0
    for i in np.flatnonzero(p.events & (p.times <= at)):
        for j in np.flatnonzero(p.times > at):
            importance = 1 / censoring_by_loop(train, p.times[i])
            right += importance * share_of(p.risks[i], p.risks[j])
            total += importance
    return right / total if total else math.nan


def ratio(terms: tuple[float, float]) -> float:
    return terms[0] / terms[1] if terms[1] else math.nan


# --- goldens -------------------------------------------------------------------------------------


def test_harrell_is_the_golden_one_with_its_pairs() -> None:
    close(harrell_c(TIMES, EVENTS, RISKS), GOLDEN["harrell"])
    close(harrell_c(TIMES, EVENTS, GOLDEN["risk_b"]), GOLDEN["harrell_b"])
    concordant, discordant, tied_risk, _ = GOLDEN["harrell_counts"]
    found = weighted_harrell_terms(TIMES, EVENTS, RISKS, np.ones((1, len(TIMES))))
    assert found[0] == [concordant + tied_risk / 2]
    assert found[1] == [concordant + discordant + tied_risk]


@pytest.mark.parametrize("edge", EDGES)
def test_edges_of_harrell_are_the_golden_ones(edge: str) -> None:
    columns = [GOLDENS[f"cindex_edges/{edge}/{name}"] for name in ("time", "event", "risk")]
    close(harrell_c(*columns), GOLDENS[f"cindex_edges/{edge}/c"])


def test_resamples_of_harrell_are_the_golden_ones() -> None:
    rows = np.random.default_rng(707).integers(200, size=(100, 200))
    weights = np.array([np.bincount(row, minlength=200) for row in rows])
    close(weighted_harrell(TIMES, EVENTS, RISKS, weights), GOLDEN["boot_a"])
    close(weighted_harrell(TIMES, EVENTS, GOLDEN["risk_b"], weights), GOLDEN["boot_b"])


def test_harrell_within_folds_is_the_golden_one() -> None:
    found = within_fold_c(TIMES, EVENTS, RISKS, GOLDEN["fold"])
    close(found.pooled, GOLDEN["harrell_within_folds"])
    close(found.mean, GOLDEN["harrell_by_fold"].mean())


def test_uno_is_the_golden_one() -> None:
    for tau, expected in zip(GOLDEN["uno_tau"], GOLDEN["uno"], strict=True):
        close(uno_c(*TRAIN, TIMES, EVENTS, RISKS, tau), expected)
    close(uno_c(*TRAIN, TIMES, EVENTS, RISKS, math.inf), GOLDEN["uno_no_tau"])


def test_the_censoring_curve_is_the_golden_one() -> None:
    curve = censoring_curve(*TRAIN)
    close(curve.times, GOLDEN["G_steps_time"])
    close(curve.survival, GOLDEN["G_steps"])
    close(curve.evaluate(GOLDEN["G_times"]), GOLDEN["G"])


def test_brier_scores_are_the_golden_ones() -> None:
    given = (*TRAIN, TIMES, EVENTS)
    close(brier(*given, GOLDEN["S"], GOLDEN["times"]), GOLDEN["brier"])
    close(integrated_brier(*given, GOLDEN["S"], GOLDEN["times"]), GOLDEN["ibs"])
    close(reference_integrated_brier(*given, GOLDEN["times"]), GOLDEN["ibs_km_reference"])
    close(kaplan_meier(*TRAIN).evaluate(GOLDEN["times"]), GOLDEN["km_train_at_times"])
    close(brier(*given, GOLDEN["S"][:, 3], 24), GOLDEN["brier"][3])


def test_the_auc_over_time_is_the_golden_one() -> None:
    columns = np.repeat(RISKS[:, None], len(GOLDEN["times"]), axis=1)
    for risks in (RISKS, columns, 7 * columns - 3):
        values, mean = cumulative_auc(*TRAIN, TIMES, EVENTS, risks, GOLDEN["times"])
        close(values, GOLDEN["auc_t"])
        close(mean, GOLDEN["auc_mean"])


def test_kaplan_meier_is_the_golden_one() -> None:
    curve = kaplan_meier(TIMES, EVENTS)  # the golden has a row for time 0
    assert (curve.times == np.unique(TIMES)).all()
    close(curve.survival, GOLDEN["km_S"][1:])
    close(np.stack([curve.low, curve.high], axis=1), GOLDEN["km_ci_loglog"][1:])
    assert (curve.at_risk == GOLDEN["km_at_risk"][1:]).all()
    assert (curve.events == GOLDEN["km_observed"][1:]).all()
    assert (curve.censored == GOLDEN["km_censored"][1:]).all()


def test_numbers_of_the_curve_are_the_golden_ones() -> None:
    times, error = greenwood(TIMES, EVENTS)
    assert (times == GOLDEN["greenwood_time"]).all()
    close(error, GOLDEN["greenwood_se"])
    expected = (float(GOLDEN["km_median"]), *GOLDEN["km_median_ci"])
    assert median_survival(TIMES, EVENTS) == expected
    close(restricted_mean(TIMES, EVENTS, float(GOLDEN["rmst_tau"])), GOLDEN["rmst"])
    for group, expected in enumerate(GOLDEN["n_at_risk_ge"]):
        found = count_at_risk(TIMES[GOLDEN["group"] == group], GOLDEN["ticks"])
        assert (found == expected).all()


def test_log_rank_is_the_golden_one() -> None:
    close(log_rank(TIMES, EVENTS, GOLDEN["group"]), GOLDEN["logrank2"])
    close(log_rank(TIMES, EVENTS, GOLDEN["group3"]), GOLDEN["logrank3"])
    found = log_rank(TIMES, EVENTS, GOLDEN["group"], strata=GOLDEN["fold"])
    close(found, GOLDEN["logrank2_stratified"])


@pytest.mark.parametrize("name", ["group", "risk"])
def test_hazard_ratio_is_the_golden_one(name: str) -> None:
    found = hazard_ratio(TIMES, EVENTS, GOLDEN[name])
    close(found, GOLDEN[f"cox_{name}"][2:6], 1e-7)


def test_breslow_and_calibration_are_the_golden_ones() -> None:
    times, hazard = baseline_hazard(TIMES, EVENTS, RISKS)
    assert (times == GOLDEN["breslow_time"]).all()
    close(hazard, GOLDEN["breslow_H0"])
    predicted = GOLDEN["S"][:, GOLDEN["times"] == GOLDEN["cal_horizon"]][:, 0]
    found = calibrate_at(TIMES, EVENTS, predicted, float(GOLDEN["cal_horizon"]))
    for name in ("predicted", "observed", "low", "high"):
        close(getattr(found, name), GOLDEN[f"cal_{name}"])
    assert (found.counts == GOLDEN["cal_count"]).all()


# --- concordance ---------------------------------------------------------------------------------


@few
@given(patients())
def test_harrell_is_that_of_a_loop_over_pairs(p: Patients) -> None:
    terms = weighted_harrell_terms(*p, np.ones((1, len(p.times))))
    assert (terms[0][0], terms[1][0]) == count_pairs(p)
    np.testing.assert_equal(harrell_c(*p), ratio(count_pairs(p)))


@few
@given(patients(), seeds, st.sampled_from([1.0, 3.0, 500.0, math.inf]))
def test_uno_is_that_of_a_loop_over_pairs(p: Patients, seed: int, tau: float) -> None:
    train = draw_training(seed)

    def importance(time: float) -> float:
        return censoring_by_loop(train, time) ** -2 if time < tau else 0.0

    found = uno_c(*train, *p, tau)
    assert found == pytest.approx(ratio(count_pairs(p, importance)), abs=1e-12, nan_ok=True)


@few
@given(patients(), seeds)
def test_a_resample_is_the_concordance_of_repeated_patients(p: Patients, seed: int) -> None:
    random = np.random.default_rng(seed)
    weights = np.vstack([random.poisson(1, (4, len(p.times))), np.zeros((1, len(p.times)))])
    repeated = [p.take(np.repeat(np.arange(len(p.times)), w.astype(int))) for w in weights]
    terms = weighted_harrell_terms(*p, weights)
    assert list(zip(*map(list, terms), strict=True)) == [count_pairs(each) for each in repeated]
    train = draw_training(seed)
    found = weighted_uno(*train, *p, 400, weights)
    np.testing.assert_allclose(found, [uno_c(*train, *e, 400) for e in repeated], rtol=1e-12)


@few
@given(patients(), seeds)
def test_weights_need_not_be_whole_numbers(p: Patients, seed: int) -> None:
    weights = np.random.default_rng(seed).integers(0, 4, (3, len(p.times)))
    whole, thirds = (weighted_harrell_terms(*p, weights / part) for part in (1, 3))
    for some, all_ in zip(thirds, whole, strict=True):
        np.testing.assert_allclose(some, all_ / 9, rtol=1e-12)


def test_large_weights_are_exact() -> None:
    random = np.random.default_rng(0)
    p = Patients(random.permutation(50) / 2, np.ones(50, bool), random.standard_normal(50))
    small = random.integers(0, 5, (2, 50))
    for factor in (2**15 + 1, 2**17 + 1):  # on both sides of what float32 can hold
        for found, expected in zip(
            weighted_harrell_terms(*p, small * factor),
            weighted_harrell_terms(*p, small),
            strict=True,
        ):
            assert (found == expected * float(factor) ** 2).all()


@pytest.mark.parametrize("block", [1, 40, 150])
def test_blocks_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.random.default_rng(0).poisson(1, (7, 200))
    at = GOLDEN["times"]

    def compute() -> list[np.ndarray]:
        return [
            *weighted_harrell_terms(TIMES, EVENTS, RISKS, weights),
            *weighted_uno_terms(*TRAIN, TIMES, EVENTS, RISKS, 60, weights),
            *weighted_cumulative_auc(*TRAIN, TIMES, EVENTS, RISKS, at, weights),
        ]

    together = compute()
    monkeypatch.setattr(survival_concordance, "WEIGHT_BLOCK", 2 * block)
    monkeypatch.setattr(survival_concordance, "PAIR_BLOCK", 7 * block)
    monkeypatch.setattr(survival_auc, "BLOCK_SIZE", 3 * block)
    for found, expected in zip(compute(), together, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_no_resamples_are_no_values() -> None:
    none = np.zeros((0, 200))
    assert weighted_harrell(TIMES, EVENTS, RISKS, none).shape == (0,)
    assert weighted_uno(*TRAIN, TIMES, EVENTS, RISKS, 60, none).shape == (0,)
    at = GOLDEN["times"]
    values, means = weighted_cumulative_auc(*TRAIN, TIMES, EVENTS, RISKS, at, none)
    assert values.shape == (0, 9)
    assert means.shape == (0,)
    found = weighted_integrated_brier(*TRAIN, TIMES, EVENTS, GOLDEN["S"], at, none)
    assert found.shape == (0,)


@few
@given(patients(), seeds)
def test_concordance_depends_on_the_order_of_risks_only(p: Patients, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(p.times))
    before = harrell_c(*p)
    np.testing.assert_equal(harrell_c(*p.take(order)), before)
    np.testing.assert_equal(harrell_c(p.times, p.events, np.arctan(p.risks)), before)
    np.testing.assert_equal(harrell_c(2 * p.times + 3, p.events, 5 * p.risks - 7), before)
    reverse = harrell_c(p.times, p.events, -p.risks)
    assert reverse == pytest.approx(1 - before, abs=1e-12, nan_ok=True)  # ties are one half


def test_uno_without_censoring_before_tau_is_harrell() -> None:
    p = Patients(TIMES, EVENTS, RISKS)
    everyone = np.ones(len(TIMES), bool)
    assert uno_c(TIMES, everyone, *p, math.inf) == pytest.approx(harrell_c(*p), abs=1e-12)


def test_events_from_tau_on_do_not_count_but_later_patients_do() -> None:
    train = ([1, 2, 3, 4], [1, 1, 1, 1])
    risks = [1, 0, 2]
    assert uno_c(*train, [1, 2, 3], [1, 1, 1], risks, tau=1.5) == 0.5
    assert uno_c(*train, [1, 2, 3], [1, 1, 1], risks, tau=2) == 0.5
    assert uno_c(*train, [1, 2, 3], [1, 1, 1], risks, tau=2.5) == pytest.approx(1 / 3)
    assert math.isnan(uno_c(*train, [1, 2, 3], [1, 1, 1], risks, tau=1))


def test_without_pairs_concordance_is_nan() -> None:
    nothing: list[list[float]] = [[], [], []]
    for columns in (nothing, [[1], [1], [0]], [[1, 2], [0, 0], [1, 2]], [[3, 3], [1, 1], [1, 2]]):
        assert math.isnan(harrell_c(*columns))
        assert math.isnan(uno_c([1, 9], [1, 1], *columns, 5))
        assert all(map(math.isnan, within_fold_c(*columns, np.zeros(len(columns[0])))))


def test_a_fold_without_pairs_counts_neither_in_the_pool_nor_in_the_mean() -> None:
    folds = ["a", "a", "b", "b", "c", "c"]
    found = within_fold_c([1, 2, 1, 2, 1, 2], [1, 1, 1, 1, 0, 0], [2, 1, 1, 2, 1, 2], folds)
    assert found == (0.5, 0.5)


def test_the_default_tau_is_the_80th_percentile_of_all_training_times() -> None:
    assert default_tau([10, 20, 30, 40, 50, 60]) == 50
    assert default_tau(TRAIN[0]) == np.percentile(TRAIN[0], 80)


# --- censoring, Brier score, AUC -----------------------------------------------------------------


@few
@given(seeds)
def test_censoring_is_that_of_a_loop_over_times(seed: int) -> None:
    train = draw_training(seed)
    at = np.array([0, 0.5, 1, 3, 500, 1_000])
    expected = [censoring_by_loop(train, time) for time in at]
    np.testing.assert_allclose(censoring_curve(*train).evaluate(at), expected, rtol=1e-12)


def test_where_only_events_are_left_censoring_does_not_fall() -> None:
    curve = censoring_curve([1, 2, 3, 3], [1, 0, 1, 1])
    assert curve.survival.tolist() == [1, pytest.approx(2 / 3), pytest.approx(2 / 3)]
    assert curve.evaluate([0.5, 2.5, 3]).tolist() == [1, *curve.survival[1:]]


def test_unknown_censoring_is_an_error_with_the_largest_usable_time() -> None:
    ends_in_event = ([1, 2, 3], [1, 0, 1])
    ends_in_censoring = ([1, 2, 3], [1, 1, 0])
    message = r"at time 4\.0: found training times up to 3\.0.*largest usable tau is 3\.0"
    for train in (ends_in_event, ends_in_censoring):
        with pytest.raises(ValueError, match=message):
            uno_c(*train, [1, 4, 5], [1, 1, 0], [2, 1, 0], math.inf)
        assert uno_c(*train, [1, 4, 5], [1, 1, 0], [2, 1, 0], 3) == 1
        with pytest.raises(ValueError, match=message):
            cumulative_auc(*train, [1, 4, 5], [1, 1, 0], [2, 1, 0], [1, 4.5])
        with pytest.raises(ValueError, match=message):
            brier(*train, [1, 2, 5], [1, 0, 0], np.full((3, 1), 0.5), [4])
    assert censoring_curve(*ends_in_event).evaluate(3) > 0
    with pytest.raises(ValueError, match=r"expected times before 3\.0"):
        censoring_curve(*ends_in_censoring).evaluate(3)


def test_patients_beyond_the_training_times_are_fine_where_their_censoring_is_not_needed() -> None:
    train = ([1, 2, 3], [1, 0, 1])
    assert brier(*train, [1, 9, 9], [1, 1, 0], [[0.5]] * 3, [1]) == pytest.approx(0.25)
    assert cumulative_auc(*train, [1, 9, 9], [1, 1, 0], [2, 1, 0], [1])[0] == [1]


@few
@given(patients(least=3), seeds)
def test_brier_is_that_of_a_loop_over_patients(p: Patients, seed: int) -> None:
    if np.ptp(p.times) == 0:
        return
    train = draw_training(seed)
    random = np.random.default_rng(seed)
    at = np.unique(random.uniform(p.times.min(), p.times.max(), 4))
    predicted = random.random((len(p.times), len(at)))
    expected = np.zeros(len(at))
    for k, moment in enumerate(at):
        for i, time in enumerate(p.times):
            if time > moment:
                expected[k] += (1 - predicted[i, k]) ** 2 / censoring_by_loop(train, moment)
            elif p.events[i]:
                expected[k] += predicted[i, k] ** 2 / censoring_by_loop(train, time)
    expected /= len(p.times)
    close(brier(*train, p.times, p.events, predicted, at), expected)
    mean = np.diff(at) @ (expected[1:] + expected[:-1]) / 2 / (at[-1] - at[0])
    close(integrated_brier(*train, p.times, p.events, predicted, at), mean)


@few
@given(patients(least=3), seeds)
def test_a_resample_is_the_brier_score_of_repeated_patients(p: Patients, seed: int) -> None:
    random = np.random.default_rng(seed)
    weights = random.poisson(1, (3, len(p.times))) + 1  # everybody, as the range is checked
    if np.ptp(p.times) == 0:
        return
    at = np.linspace(p.times.min(), p.times.max(), 5)[:-1]
    predicted = random.random((len(p.times), len(at)))
    train = draw_training(seed)
    found = weighted_integrated_brier(*train, p.times, p.events, predicted, at, weights)
    rows = [np.repeat(np.arange(len(p.times)), w) for w in weights]
    apart = [integrated_brier(*train, p.times[r], p.events[r], predicted[r], at) for r in rows]
    np.testing.assert_allclose(found, apart, rtol=1e-12)
    found = weighted_brier(*train, p.times, p.events, predicted, at, weights)
    apart = [brier(*train, p.times[r], p.events[r], predicted[r], at) for r in rows]
    np.testing.assert_allclose(found, apart, rtol=1e-12)


def test_an_empty_resample_has_no_brier_score() -> None:
    weights = np.vstack([np.zeros(200), np.ones(200)])
    given = (*TRAIN, TIMES, EVENTS, GOLDEN["S"], GOLDEN["times"])
    close(weighted_integrated_brier(*given, weights), [math.nan, GOLDEN["ibs"]])


@few
@given(patients(), seeds)
def test_the_auc_is_that_of_a_loop_over_pairs(p: Patients, seed: int) -> None:
    train = draw_training(seed)
    at = np.array([0, 1, 3.5, 400, 999.5])
    values, mean = cumulative_auc(*train, *p, at)
    np.testing.assert_allclose(values, [auc_by_loop(train, p, t) for t in at], rtol=1e-12)
    curve = np.append(1, kaplan_meier(p.times, p.events).evaluate(at))
    losses = -np.diff(curve)
    expected = sum(v * d for v, d in zip(values, losses, strict=True) if d != 0)
    total = 1 - curve[-1]
    expected = expected / total if total else math.nan
    assert mean == pytest.approx(expected, abs=1e-12, nan_ok=True)


@few
@given(patients(), seeds)
def test_a_resample_is_the_auc_of_repeated_patients(p: Patients, seed: int) -> None:
    random = np.random.default_rng(seed)
    weights = random.poisson(1, (5, len(p.times)))
    at = np.array([0.5, 2, 300, 700])
    risks = random.integers(0, 4, (len(p.times), len(at)))
    train = draw_training(seed)
    values, means = weighted_cumulative_auc(*train, p.times, p.events, risks, at, weights)
    for found, mean, w in zip(values, means, weights, strict=True):
        rows = np.repeat(np.arange(len(p.times)), w)
        apart = cumulative_auc(*train, p.times[rows], p.events[rows], risks[rows], at)
        np.testing.assert_allclose(found, apart[0], rtol=1e-12)
        np.testing.assert_allclose(mean, apart[1], rtol=1e-12)


def test_the_mean_auc_leaves_out_times_without_weight() -> None:
    given = ([1, 9], [1, 1], [2, 3, 4, 5], [1, 1, 0, 0], [4, 1, 3, 2])
    values, mean = cumulative_auc(*given, [1, 2, 3, 4])  # no case at 1, nobody is lost at 4
    assert values.tolist() == [pytest.approx(math.nan, nan_ok=True), 1, 0.5, 0.5]
    assert mean == pytest.approx((1 + 0.5) / 2)
    assert math.isnan(cumulative_auc(*given, [2, 6])[1])  # past the last patient


# --- curves --------------------------------------------------------------------------------------


@few
@given(patients())
def test_kaplan_meier_without_censoring_is_the_share_of_later_times(p: Patients) -> None:
    curve = kaplan_meier(p.times, np.ones(len(p.times)))
    close(curve.survival, [(p.times > time).mean() for time in curve.times], 1e-12)


@few
@given(patients())
def test_kaplan_meier_and_its_interval_are_those_of_scipy(p: Patients) -> None:
    curve = kaplan_meier(p.times, p.events)
    data = stats.CensoredData(p.times[p.events], right=p.times[~p.events])
    reference = stats.ecdf(data).sf
    close(curve.survival, reference.probabilities, 1e-12)
    with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        low, high = (
            bound.probabilities for bound in reference.confidence_interval(method="log-log")
        )
    inside = (curve.survival > 0) & (curve.survival < 1)
    close(curve.low[inside], low[inside])
    close(curve.high[inside], high[inside])
    for edge in (0, 1):
        assert (curve.low[curve.survival == edge] == edge).all()
        assert (curve.high[curve.survival == edge] == edge).all()


@few
@given(patients(), seeds)
def test_the_order_of_patients_changes_no_curve(p: Patients, seed: int) -> None:
    q = p.take(np.random.default_rng(seed).permutation(len(p.times)))
    for field in ("times", "survival", "low", "high", "at_risk"):
        found = [getattr(kaplan_meier(each.times, each.events), field) for each in (p, q)]
        np.testing.assert_array_equal(*found)
    for each, other in zip(baseline_hazard(*p), baseline_hazard(*q), strict=True):
        np.testing.assert_allclose(each, other, rtol=1e-12)


def test_kaplan_meier_by_hand() -> None:
    curve = kaplan_meier([2, 2, 3, 5, 5], [1, 0, 0, 1, 0])
    assert curve.times.tolist() == [2, 3, 5]
    assert curve.at_risk.tolist() == [5, 3, 2]
    assert curve.survival == pytest.approx([0.8, 0.8, 0.4])
    assert curve.evaluate([0, 2, 4.9, 5]) == pytest.approx([1, 0.8, 0.8, 0.4])
    assert math.isnan(curve.evaluate(5.1)[0])
    assert curve.median().median == 5
    times, error = greenwood([2, 2, 3, 5, 5], [1, 0, 0, 1, 0])
    assert times.tolist() == [2, 5]
    expected = [0.8 * math.sqrt(1 / 20), 0.4 * math.sqrt(1 / 20 + 1 / 2)]
    assert error == pytest.approx(expected)


def test_when_everyone_has_died_the_curve_stays_at_0() -> None:
    curve = kaplan_meier([1, 2], [1, 1])
    assert curve.evaluate([2, 99]).tolist() == [0, 0]
    assert [bound.tolist() for bound in curve.interval([2, 99])] == [[0, 0], [0, 0]]
    assert curve.restricted_mean(99) == 1.5
    assert greenwood([1, 2], [1, 1])[1][-1] == 0


def test_past_the_last_time_the_curve_is_unknown() -> None:
    curve = kaplan_meier([1, 2], [1, 0])
    assert math.isnan(curve.evaluate(2.1)[0])
    assert all(math.isnan(bound[0]) for bound in curve.interval(2.1))
    assert curve.restricted_mean(2) == 1.5
    assert math.isnan(curve.restricted_mean(2.1))
    assert restricted_mean([1, 2], [0, 0], 0) == 0
    assert restricted_mean([1, 2], [1, 1], math.inf) == 1.5


def test_a_median_that_is_not_reached_is_infinite() -> None:
    assert median_survival([1, 2, 3], [0, 0, 0]) == (math.inf,) * 3
    found = median_survival([1, 2, 3, 4], [1, 1, 0, 0])
    assert found.median == 2
    assert found.high == math.inf


@pytest.mark.parametrize("size", range(2, 60, 2))
def test_a_curve_at_exactly_one_half_reaches_the_median(size: int) -> None:
    # the product of 1 − 1/n may round to slightly more than one half
    assert median_survival(np.arange(1, size + 1), np.ones(size)).median == size / 2


def test_without_patients_curves_are_empty_and_their_numbers_nan() -> None:
    curve = kaplan_meier([], [])
    assert len(curve.times) == len(curve.survival) == len(curve.at_risk) == 0
    assert math.isnan(curve.evaluate(1)[0])
    assert all(map(math.isnan, median_survival([], [])))
    assert math.isnan(restricted_mean([], [], 1))
    assert [len(column) for column in greenwood([], [])] == [0, 0]
    assert count_at_risk([], [0, 1]).tolist() == [0, 0]
    assert [len(column) for column in baseline_hazard([], [], [])] == [0, 0]
    assert calibrate_at([], [], [], 1).counts.tolist() == [0] * 5
    assert np.isnan(brier([1], [1], [], [], np.zeros((0, 2)), [0, 1])).all()
    assert math.isnan(cumulative_auc([1], [1], [], [], [], [1])[1])


@few
@given(patients(), st.floats(0, 1_000))
def test_at_risk_includes_patients_at_the_tick(p: Patients, tick: float) -> None:
    ticks = [tick, *p.times]
    assert count_at_risk(p.times, ticks).tolist() == [(p.times >= t).sum() for t in ticks]


@few
@given(patients())
def test_the_baseline_hazard_is_that_of_a_loop_over_times(p: Patients) -> None:
    times, hazard = baseline_hazard(*p)
    steps = [((p.times == t) & p.events).sum() / np.exp(p.risks[p.times >= t]).sum() for t in times]
    np.testing.assert_allclose(hazard, np.cumsum(steps), rtol=1e-12)


def test_the_baseline_hazard_of_very_different_risks_is_finite() -> None:
    _, hazard = baseline_hazard([1, 2, 3], [1, 1, 1], [900, 0, -600])
    assert np.isfinite(hazard).all()
    assert np.diff(hazard) == pytest.approx([1, math.exp(600)], rel=1e-12)


def test_tied_predictions_leave_groups_empty() -> None:
    found = calibrate_at([1, 2, 3, 4], [1, 0, 1, 0], [0.5] * 4, 3)
    assert found.counts.tolist() == [0, 0, 0, 0, 4]
    assert np.isnan(found.predicted[:4]).all()
    assert found.predicted[4] == 0.5
    assert found.observed[4] == pytest.approx(0.375)
    assert found.low[4] < 0.375 < found.high[4]
    assert math.isnan(calibrate_at([1, 2, 3, 4], [1, 0, 1, 0], [0.5] * 4, 5).observed[4])
    assert calibrate_at([1, 2], [1, 1], [0.1, 0.2], 5, groups=1).observed == [0]


def test_the_curve_in_bins_is_that_of_a_constant_hazard() -> None:
    edges, last = np.array([10.0, 30.0]), 90.0
    survived = np.array([[0.9, 0.6, 0.2], [0.5, 0.0, 0.0], [1.0, 1.0, 1.0]])
    at = np.array([0, 5, 10, 15, 30, 60, 90])
    expected = [
        [1, 0.9**0.5, 0.9, 0.9 * (2 / 3) ** 0.25, 0.6, 0.6 * (1 / 3) ** 0.5, 0.2],
        [1, 0.5**0.5, 0.5, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1],
    ]
    close(curve_in_bins(survived, edges, last, at), expected, 1e-12)
    assert np.isnan(curve_in_bins(survived, edges, last, [90.001])).all()
    assert curve_in_bins(survived, edges, 30.0, [30.0])[0] == pytest.approx([0.2])
    assert curve_in_bins([[0.25]], [], 10, [5]) == pytest.approx(np.array([[0.5]]))


@few
@given(seeds, st.integers(1, 6))
def test_curves_in_bins_fall_through_survival_at_the_edges(seed: int, bins: int) -> None:
    random = np.random.default_rng(seed)
    survived = np.cumprod(random.random((4, bins)), axis=1)
    limits = np.cumsum(random.uniform(0.1, 9, bins))
    at = np.sort(np.append(random.uniform(0, limits[-1], 20), limits))
    found = curve_in_bins(survived, limits[:-1], limits[-1], at)
    assert (np.diff(found, axis=1) <= 1e-12).all()
    close(found[:, np.searchsorted(at, limits)], survived, 1e-12)


# --- groups --------------------------------------------------------------------------------------


def log_rank_by_loop(p: Patients, groups: np.ndarray, strata: np.ndarray) -> float:
    """The statistic of two groups, 0 and 1."""
    excess = variance = 0.0
    for stratum in np.unique(strata):
        rows = strata == stratum
        times, events, group = p.times[rows], p.events[rows], groups[rows]
        for time in np.unique(times[events]):
            n, d = (times >= time).sum(), ((times == time) & events).sum()
            share = group[times >= time].mean()
            excess += group[(times == time) & events].sum() - d * share
            variance += d * (n - d) / (n - 1) * share * (1 - share) if n > 1 else 0
    return excess**2 / variance if variance else math.nan


@few
@given(patients(), seeds)
def test_log_rank_is_that_of_a_loop_over_times(p: Patients, seed: int) -> None:
    random = np.random.default_rng(seed)
    groups, strata = random.integers(0, 2, (2, len(p.times)))
    for given_strata in (None, strata):
        found = log_rank(p.times, p.events, groups, given_strata)
        compared = np.zeros(len(p.times)) if given_strata is None else strata
        expected = log_rank_by_loop(p, groups, compared)
        assert found.chi2 == pytest.approx(expected, rel=1e-9, abs=1e-12, nan_ok=True)
        p_value = stats.chi2.sf(expected, 1)
        assert found.p == pytest.approx(p_value, rel=1e-9, nan_ok=True)


@few
@given(patients(least=2), seeds)
def test_names_of_groups_and_order_of_patients_do_not_change_the_log_rank(
    p: Patients, seed: int
) -> None:
    random = np.random.default_rng(seed)
    groups = random.integers(0, 4, len(p.times))
    before = log_rank(p.times, p.events, groups)
    order = random.permutation(len(p.times))
    q = p.take(order)
    names = np.array(["low", "b", "high", "a"])[groups]
    np.testing.assert_allclose(log_rank(q.times, q.events, names[order]), before, rtol=1e-7)


def test_groups_that_are_copies_do_not_differ() -> None:
    times, events = np.tile(TIMES, 3), np.tile(EVENTS, 3)
    found = log_rank(times, events, np.repeat(["a", "b", "c"], len(TIMES)))
    assert found.chi2 == pytest.approx(0, abs=1e-9)
    assert found.p == pytest.approx(1)


def test_log_rank_of_nothing_to_compare_is_nan() -> None:
    for columns in (
        ([], [], []),
        ([1, 2], [1, 1], [0, 0]),  # one group
        ([1, 2], [0, 0], [0, 1]),  # no event
        ([1], [1], ["a"]),
        ([1, 1], [1, 1], [0, 1]),  # everybody at once
    ):
        assert all(map(math.isnan, log_rank(*columns)))


@pytest.mark.parametrize("label", [2, -1])
def test_a_group_that_is_never_at_risk_adds_a_degree_of_freedom_only(label: int) -> None:
    """As in lifelines and scikit-survival: degrees are one less than groups."""
    groups = GOLDEN["group"]
    found = log_rank(np.append(TIMES, 0.0), np.append(EVENTS, False), np.append(groups, label))
    close(found.chi2, log_rank(TIMES, EVENTS, groups).chi2)
    close(found.p, stats.chi2.sf(found.chi2, 2))


def test_the_log_rank_of_a_group_censored_at_once_is_that_of_other_packages() -> None:
    found = log_rank([1, 2, 5, 6, 7, 8, 9], [0, 0, 1, 1, 1, 0, 1], [2, 2, 0, 1, 0, 1, 1])
    assert found == pytest.approx((1.5909, 0.4514), abs=5e-5)


def efron_by_loop(p: Patients, strata: np.ndarray, beta: float) -> float:
    """The log partial likelihood of the risks as a variable."""
    total = 0.0
    for stratum in np.unique(strata):
        rows = strata == stratum
        times, events, x = p.times[rows], p.events[rows], p.risks[rows]
        for time in np.unique(times[events]):
            tied = x[(times == time) & events]
            at_risk, own = np.exp(beta * x[times >= time]).sum(), np.exp(beta * tied).sum()
            total += beta * tied.sum()
            total -= sum(math.log(at_risk - s / len(tied) * own) for s in range(len(tied)))
    return total


@few
@given(patients(least=4), seeds)
def test_the_hazard_ratio_maximises_the_likelihood(p: Patients, seed: int) -> None:
    strata = np.random.default_rng(seed).integers(0, 2, len(p.times))
    p = p._replace(risks=p.risks % 3)
    for used in (np.zeros(len(p.times)), strata):
        found = hazard_ratio(*p, None if used is not strata else strata)
        if math.isnan(found.ratio):
            far = [efron_by_loop(p, used, beta) for beta in (-60, -30, 0, 30, 60)]
            falls, rises = -np.diff(far), np.diff(far)
            assert (falls >= -1e-9).all() or (rises >= -1e-9).all()  # no maximum inside
            continue
        best = optimize.minimize_scalar(
            lambda beta, used=used: -efron_by_loop(p, used, beta),
            bracket=(math.log(found.ratio) - 0.5, math.log(found.ratio) + 0.5),
            tol=1e-10,
        )
        assert math.log(found.ratio) == pytest.approx(best.x, abs=1e-5)
        step = 1e-3
        curve = [efron_by_loop(p, used, math.log(found.ratio) + d) for d in (-step, 0, step)]
        information = -(curve[0] - 2 * curve[1] + curve[2]) / step**2
        error = (math.log(found.high) - math.log(found.low)) / 2 / stats.norm.ppf(0.975)
        assert error == pytest.approx(information**-0.5, rel=1e-3)
        assert found.p == pytest.approx(2 * stats.norm.sf(abs(math.log(found.ratio)) / error))


def test_the_hazard_ratio_follows_the_unit_and_the_sign_of_the_variable() -> None:
    ratio, low, high, p = hazard_ratio(TIMES, EVENTS, RISKS)
    close(hazard_ratio(TIMES, EVENTS, 4 - RISKS), (1 / ratio, 1 / high, 1 / low, p))
    in_thousandths = hazard_ratio(TIMES, EVENTS, 1e3 * RISKS + 1e6)
    close(np.power(in_thousandths[:3], 1e3), (ratio, low, high), 1e-8)
    assert in_thousandths.p == pytest.approx(p, rel=1e-6)


def test_the_hazard_ratio_with_an_extreme_outlier_is_finite() -> None:
    x = np.append(RISKS, -1e5)  # a censored patient
    found = hazard_ratio(np.append(TIMES, 200.0), np.append(EVENTS, False), x)
    assert np.isfinite(found).all()
    assert found.ratio > 1


def test_the_stratified_hazard_ratio_compares_within_strata_only() -> None:
    shifted = TIMES + 1_000 * GOLDEN["fold"]  # strata after each other, on one clock
    found = hazard_ratio(shifted, EVENTS, RISKS, GOLDEN["fold"])
    assert found == pytest.approx(hazard_ratio(TIMES, EVENTS, RISKS, GOLDEN["fold"]), rel=1e-9)
    one = np.zeros(len(TIMES))
    assert hazard_ratio(TIMES, EVENTS, RISKS, one) == hazard_ratio(TIMES, EVENTS, RISKS)


@pytest.mark.parametrize(
    ("times", "events", "x"),
    [
        ([], [], []),
        ([1], [1], [0]),
        ([1, 2, 3], [0, 0, 0], [1, 2, 3]),  # no event
        ([1, 2, 3], [1, 1, 1], [5, 5, 5]),  # constant
        ([1, 2, 3], [1, 1, 1], [3, 2, 1]),  # each event has the largest
        ([1, 2, 3], [1, 1, 1], [1, 2, 3]),  # each has the smallest
        ([1, 1, 2, 3], [1, 1, 0, 0], [1, 1, 0, 0]),  # a group without events
        ([1, 1, 2, 3], [1, 1, 0, 0], [0.1, 0.1, 0.7, 0.7]),
    ],
)
def test_a_hazard_ratio_that_is_not_finite_is_nan(
    times: list[float], events: list[int], x: list[float]
) -> None:
    assert all(map(math.isnan, hazard_ratio(times, events, x)))


# --- invalid input -------------------------------------------------------------------------------

TWO = ([1.0, 2.0], [1, 0])
CALLS: dict[str, Callable[..., object]] = {
    "harrell_c": lambda t, e: harrell_c(t, e, [1, 2]),
    "uno_c": lambda t, e: uno_c(*TWO, t, e, [1, 2], 1),
    "brier": lambda t, e: brier(*TWO, t, e, [[0.5], [0.5]], [1]),
    "cumulative_auc": lambda t, e: cumulative_auc(*TWO, t, e, [1, 2], [1]),
    "kaplan_meier": kaplan_meier,
    "greenwood": greenwood,
    "censoring_curve": censoring_curve,
    "log_rank": lambda t, e: log_rank(t, e, [0, 1]),
    "hazard_ratio": lambda t, e: hazard_ratio(t, e, [0, 1]),
    "baseline_hazard": lambda t, e: baseline_hazard(t, e, [0, 1]),
    "calibrate_at": lambda t, e: calibrate_at(t, e, [0.5, 0.5], 1),
    "within_fold_c": lambda t, e: within_fold_c(t, e, [0.5, 0.5], [0, 1]),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("times", "events", "message"),
    [
        ([1, -2], [1, 0], r"times: found -2\.0 in row 1, expected numbers of 0 or more"),
        ([1, math.nan], [1, 0], r"times: found nan in row 1, expected finite numbers"),
        ([math.inf, 2], [1, 0], r"times: found inf in row 0, expected finite numbers"),
        ([1, 2], [1, 2], r"events: found 2\.0 in row 1, expected 1 \(happened\) or 0"),
        ([1, 2], [1, math.nan], r"events: found nan in row 1"),
        ([1, 2], [1, 0, 1], r"events: found 3 values, expected 2"),
        ([[1, 2]], [1, 0], r"times: found an array of shape \(1, 2\)"),
        ([1, 2], ["dead", "alive"], r"events: found values that are not numbers"),
    ],
)
def test_invalid_times_and_events_are_an_error(
    name: str, times: object, events: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CALLS[name](times, events)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: harrell_c(*TWO, [1, math.nan]), "risks: found nan in row 1"),
        (lambda: harrell_c(*TWO, [1]), "risks: found 1 values, expected 2"),
        (lambda: weighted_harrell(*TWO, [1, 2], [1, 1]), r"weights: found an array of shape \(2,"),
        (lambda: weighted_harrell(*TWO, [1, 2], [[1, -1]]), "weights: found negative"),
        (lambda: uno_c([], [], *TWO, [1, 2], 1), "training times: found no patient"),
        (lambda: uno_c([1], [3], *TWO, [1, 2], 1), "training events: found 3"),
        (lambda: uno_c(*TWO, *TWO, [1, 2], math.nan), "tau: found NaN"),
        (lambda: default_tau([]), "training times: found no patient"),
        (lambda: brier(*TWO, *TWO, [[1.2], [1]], [1]), r"survival: found 1\.2 in row 0"),
        (lambda: brier(*TWO, *TWO, [[1, 1]], [1]), r"survival: found an array of shape \(1, 2\)"),
        (lambda: brier(*TWO, *TWO, [1, 1], [2]), r"at: .* from 1\.0 to before 2\.0"),
        (lambda: brier(*TWO, *TWO, [1, 1], [0.5]), r"at: .* from 1\.0 to before 2\.0"),
        (lambda: integrated_brier(*TWO, *TWO, [1, 1], [1]), "at: .* 2 or more increasing"),
        (lambda: integrated_brier(*TWO, *TWO, [[1] * 2] * 2, [1.5, 1]), "2 or more increasing"),
        (lambda: cumulative_auc(*TWO, *TWO, [1, 2], [1.5, 1]), "1 or more increasing"),
        (lambda: cumulative_auc(*TWO, *TWO, [1, 2], []), "at: found no time"),
        (lambda: cumulative_auc(*TWO, *TWO, [[1], [2]], [1, 1.5]), "risks: found an array"),
        (lambda: log_rank(*TWO, [0]), r"groups: found shape \(1,\)"),
        (lambda: log_rank(*TWO, [0, math.nan]), "groups: found NaN"),
        (lambda: log_rank(*TWO, [0, 1], [0]), "strata: found shape"),
        (lambda: within_fold_c(*TWO, [1, 2], [0]), "folds: found shape"),
        (lambda: restricted_mean(*TWO, -1), "tau: found -1"),
        (lambda: restricted_mean(*TWO, math.nan), "tau: found nan"),
        (lambda: calibrate_at(*TWO, [0, 1], 1, groups=0), "groups: found 0"),
        (lambda: count_at_risk([-1], [1]), "times: found -1"),
        (lambda: curve_in_bins([[1, 1, 1]], [2, 2], 3, [1]), "edges: found"),
        (lambda: curve_in_bins([[1, 1]], [2], 1, [1]), "edges: found"),
        (lambda: curve_in_bins([[1]], [2], 3, [1]), "survival: found an array of shape"),
        (lambda: curve_in_bins([[1, 1]], [2], 3, [-1]), "at: found -1"),
    ],
)
def test_other_invalid_input_is_an_error(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_every_public_function_is_in_the_list_of_names() -> None:
    assert sorted(survival.__all__) == survival.__all__
    assert all(callable(getattr(survival, name)) for name in survival.__all__)
