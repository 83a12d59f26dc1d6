"""The permutation test keeps its level, and finds what is there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import scipy.stats
from answers import answers
from exhaustive import choose_count
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from simulated_pairs import FOLDS, NULLS, PATIENTS, false_claims, power

from sacmil.evaluation import significance
from sacmil.evaluation.comparison import compare_models, list_conclusions
from sacmil.evaluation.fold_results import FoldResult, collect_fold_results, compute_fold_metrics
from sacmil.evaluation.significance import (
    auc_covariance,
    count_needed_patients,
    delong_test,
    permutation_test,
    sign_flip_test,
)
from sacmil.metrics.classification import CLASSIFICATION_METRICS, auc
from sacmil.results import Predictions


def make_images(errors: Sequence[int]) -> Predictions:
    """16 patients of three images each; b gets one image of each of some patients wrong."""
    rows, positive = [], []
    for model, patient, image in product("ab", range(16), range(3)):
        label = image % 2  # both classes in each patient, so that images are the unit
        wrong = model == "b" and patient in errors and image == 0
        positive.append(0.9 if bool(label) != wrong else 0.1)
        name = f"p{patient:02d}"
        rows.append((f"{name}-{image}", name, "test", patient % 5, 0, model, label))
    p = np.array(positive)
    return Predictions.from_rows(("normal", "tumour"), rows, np.stack([1 - p, p], axis=1))


def test_one_image_in_each_of_four_patients_is_no_evidence() -> None:
    # four signs alike: 2 of 16 arrangements, whatever the twelve other patients are
    (found,) = compare_models(make_images(errors=[0, 1, 2, 3]), metric="accuracy")
    assert found.p_permutation == 0.125
    assert list_conclusions([found])[0].startswith("No significant difference between a and b")


def test_six_patients_that_agree_are_evidence() -> None:
    (found,) = compare_models(make_images(errors=range(6)), metric="accuracy")
    assert found.p_permutation == pytest.approx(2 / 2**6)
    assert list_conclusions([found])[0].startswith("a is better than b")


def swap_by_hand(
    first: Sequence[FoldResult], second: Sequence[FoldResult], swapped: set[str]
) -> list[FoldResult]:
    """The first model's trials with some patients' probabilities of the second."""
    return [
        replace(
            one,
            values=np.where(
                np.isin(one.patients, list(swapped))[None, :, None], other.values, one.values
            ),
        )
        for one, other in zip(first, second, strict=True)
    ]


@pytest.mark.parametrize(  # additive or not, of ranks, of classes and of probabilities
    "metric", ["auc", "average_precision", "accuracy", "f1", "brier", "calibration_error"]
)
def test_the_exact_test_is_that_of_a_plain_loop(metric: str) -> None:
    given = answers({"a": 1.5, "b": 0.5}, patients=8, folds=2, seeds=2, classes=2)
    first, second = collect_fold_results(given).values()
    widening = 1.0
    if metric in ("auc", "average_precision"):
        first, second = rank_by_hand(first), rank_by_hand(second)
        widening = math.sqrt(4 / 2)  # four patients in each fold
    everyone = sorted({who for trial in first for who in trial.patients.tolist()})
    differences = []
    for flags in product([False, True], repeat=len(everyone)):
        swapped = {who for who, flag in zip(everyone, flags, strict=True) if flag}
        pair = swap_by_hand(first, second, swapped), swap_by_hand(second, first, swapped)
        differences.append(
            np.mean(compute_fold_metrics(pair[0], metric) - compute_fold_metrics(pair[1], metric))
        )
    p = np.mean(widening * np.abs(differences) >= abs(differences[0]) - 1e-10)
    if metric in ("auc", "average_precision"):
        influences = [
            differences[0] - halve_by_hand(first, second, who, metric) for who in everyone
        ]
        p = max(p, sign_flip_test(np.multiply(2, influences), observed=differences[0]))
    assert compare_models(given, metric=metric, draws=10)[0].p_permutation == pytest.approx(p)


def halve_by_hand(
    first: Sequence[FoldResult], second: Sequence[FoldResult], patient: str, metric: str
) -> float:
    """The difference where all rows stand twice and those of one patient once."""
    values = []
    for trials in (first, second):
        repeated = []
        for trial in trials:
            rows = np.repeat(
                np.arange(len(trial.targets)), np.where(trial.patients == patient, 1, 2)
            )
            repeated.append(
                replace(trial, targets=trial.targets[rows], values=trial.values[:, rows])
            )
        values.append(compute_fold_metrics(repeated, metric))
    return float(np.mean(values[0] - values[1]))


def rank_by_hand(trials: Sequence[FoldResult]) -> list[FoldResult]:
    """Ranks within fold, seed and class; these scores have no ties."""
    return [replace(one, values=one.values.argsort(1).argsort(1).astype(float)) for one in trials]


ADDITIVE = [name for name, one in CLASSIFICATION_METRICS.items() if one.is_additive]


@pytest.mark.parametrize("metric", sorted(ADDITIVE))
def test_the_short_cut_of_additive_metrics_changes_no_p(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = answers({"a": 1.5, "b": 1}, patients=11, folds=2, repeats=2, classes=3, slides=2)
    given.targets[given.slide_id == "p3-s0"] = 1  # slides become the unit
    first, second = collect_fold_results(given).values()
    assert any(len(one.units) > len({*one.patients}) for one in first)
    quick = permutation_test(first, second, metric)
    slow = replace(CLASSIFICATION_METRICS[metric], is_additive=False)
    monkeypatch.setitem(CLASSIFICATION_METRICS, metric, slow)
    assert quick == permutation_test(first, second, metric)


def test_metrics_whose_difference_is_a_sum_over_patients_take_the_short_cut() -> None:
    assert {*ADDITIVE} == {"accuracy", "auc", "balanced_accuracy", "brier", "log_loss"}


@pytest.mark.parametrize("metric", ["auc", "f1"])
def test_sampled_arrangements_agree_with_all_of_them(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = collect_fold_results(answers({"a": 1.5, "b": 0.7}, patients=14)).values()
    exact = permutation_test(first, second, metric)
    monkeypatch.setattr(significance, "_MAX_EXACT_ARRANGEMENTS", 0)
    assert permutation_test(first, second, metric) == pytest.approx(exact, abs=0.02)


def test_no_number_of_arrangements_shows_that_p_is_zero() -> None:
    first, second = collect_fold_results(answers({"a": 6, "b": 0})).values()
    assert permutation_test(first, second, "auc", draws=199) == 1 / 200


def test_the_scale_of_a_model_does_not_change_the_auc_test() -> None:
    given = answers({"a": 1.5, "b": 1})
    steep = replace(given, values=given.values.copy())
    of_b = steep.model == "b"
    steep.values[of_b] = 1 / (1 + (1 / given.values[of_b] - 1) ** 5)
    assert not np.allclose(steep.probabilities, given.probabilities)
    assert compare_models(steep)[0].p_permutation == compare_models(given)[0].p_permutation


def test_a_model_with_fewer_seeds_repeats_them() -> None:
    one = answers({"b": 1}, seeds=1)
    again = [replace(one, seed=np.full(len(one), seed)) for seed in range(3)]
    other = answers({"a": 2}, seeds=3)
    (short,) = compare_models(Predictions.concatenate([other, one]))
    (long,) = compare_models(Predictions.concatenate([other, *again]))
    assert short.p_permutation == long.p_permutation


@pytest.mark.parametrize(("pairs", "level"), [(1, 0.95), (1, 0.9), (5, 0.95), (136, 0.99)])
def test_the_patients_needed_are_the_fewest_whose_p_can_pass(pairs: int, level: float) -> None:
    needed = count_needed_patients(pairs, level)
    assert pairs * 2.0 ** (1 - needed) < 1 - level
    assert pairs * 2.0 ** (2 - needed) >= 1 - level - 1e-9


@pytest.mark.parametrize(("metric", "patients"), [("accuracy", 16), ("auc", 10)])
def test_equally_good_models_are_rarely_called_different(metric: str, patients: int) -> None:
    # 5 % of 80 data sets, and three standard errors
    assert false_claims(metric, "exchangeable", patients, folds=3, datasets=80) <= 0.125


@pytest.mark.slow
@pytest.mark.parametrize("metric", NULLS)
@pytest.mark.parametrize("patients", PATIENTS)
@pytest.mark.parametrize("folds", FOLDS)
def test_false_claims_stay_below_five_percent(metric: str, patients: int, folds: int) -> None:
    datasets = choose_count(1000, sample=100)
    most = 0.05 + 3 * (0.05 * 0.95 / datasets) ** 0.5  # three standard errors
    for null in NULLS[metric]:
        assert false_claims(metric, null, patients, folds, datasets=datasets) <= most, null


@pytest.mark.slow
def test_small_folds_that_are_repeated_make_no_more_false_claims() -> None:
    # ranks of six patients swapped as they are would claim 10 %
    assert false_claims("auc", "exchangeable", 58, 10, datasets=500, repeats=4) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("metric", NULLS)
def test_power_is_near_that_of_the_bootstrap_at_a_hundred_patients(metric: str) -> None:
    found = power(metric, patients=100, datasets=choose_count(300, sample=100))
    assert found["permutation"] >= found["interval"] - 0.12
    assert found["permutation"] > found["corrected t"]


@pytest.mark.parametrize("count", [3, 8])
def test_the_permutation_test_of_few_patients_is_that_of_scipy(count: int) -> None:
    differences = np.random.default_rng(count).normal(0.3, 1.0, count)
    expected = scipy.stats.permutation_test(
        (differences, np.zeros(count)),
        lambda a, b: np.mean(a) - np.mean(b),
        permutation_type="samples",
        n_resamples=np.inf,
    )
    assert sign_flip_test(differences) == pytest.approx(expected.pvalue)


def test_random_swaps_approach_the_exact_p_and_never_give_zero() -> None:
    effects = np.random.default_rng(1).normal(0.3, 1.0, 16)
    more = np.r_[effects, 1e-6]  # a patient more than are enumerated, who hardly matters
    assert sign_flip_test(more, draws=20_000) == pytest.approx(sign_flip_test(effects), abs=0.01)
    assert sign_flip_test(np.ones(40), draws=999) == 1 / 1000
    assert sign_flip_test(np.zeros(40), draws=99) == 1.0


# DeLong's variance against placement values counted pair by pair, and worked examples.


few = settings(deadline=None, max_examples=30, derandomize=True)


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
        found = auc_covariance(labels, s[None])
        assert found[0][0] == pytest.approx(auc(labels, s), abs=1e-12)
        assert found[1][0, 0] == pytest.approx(variance, abs=1e-12)
    found = delong_test(labels, *scores)
    expected = own[0] + own[1] - 2 * shared
    assert found.variance == pytest.approx(expected, abs=1e-12)
    if expected > 1e-9:
        z = (np.mean(a10) - np.mean(b10)) / math.sqrt(expected)
        assert found.p == pytest.approx(2 * norm.sf(abs(z)), abs=1e-9)


def test_a_worked_example() -> None:
    # positives 3, 5 over negatives 1, 4: placements 1/2, 1 and 1, 1/2;
    # each has variance 1/8, so the variance is (1/8)/2 + (1/8)/2
    ((area,), ((variance,),)) = auc_covariance([0, 1, 0, 1], np.array([[1, 3, 4, 5]]))
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
    assert np.isnan(auc_covariance(labels, np.array([[1, 2, 3]]))[1]).all()
    assert math.isnan(delong_test(labels, [1, 2, 3], [3, 1, 2]).p)
