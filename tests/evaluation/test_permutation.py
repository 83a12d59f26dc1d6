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
from simulated_pairs import FOLDS, NULLS, PATIENTS, false_claims, power

from sacmil.evaluation import permutation
from sacmil.evaluation.comparison import compare_models
from sacmil.evaluation.conclusions import list_conclusions
from sacmil.evaluation.fold_results import FoldResult, collect_fold_results, compute_fold_metrics
from sacmil.evaluation.metrics import METRICS
from sacmil.evaluation.permutation import count_needed_patients, permutation_test, sign_flip_test
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
            probabilities=np.where(
                np.isin(one.patients, list(swapped))[None, :, None],
                other.probabilities,
                one.probabilities,
            ),
        )
        for one, other in zip(first, second, strict=True)
    ]


@pytest.mark.parametrize("metric", METRICS)
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
                np.arange(len(trial.labels)), np.where(trial.patients == patient, 1, 2)
            )
            repeated.append(
                replace(
                    trial,
                    labels=trial.labels[rows],
                    probabilities=trial.probabilities[:, rows],
                )
            )
        values.append(compute_fold_metrics(repeated, metric))
    return float(np.mean(values[0] - values[1]))


def rank_by_hand(trials: Sequence[FoldResult]) -> list[FoldResult]:
    """Ranks within fold, seed and class; these scores have no ties."""
    return [
        replace(one, probabilities=one.probabilities.argsort(1).argsort(1).astype(float))
        for one in trials
    ]


@pytest.mark.parametrize("metric", sorted(permutation._ADDITIVE_METRICS))
def test_the_short_cut_of_additive_metrics_changes_no_p(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = answers({"a": 1.5, "b": 1}, patients=11, folds=2, repeats=2, classes=3, slides=2)
    given.label[given.slide_id == "p3-s0"] = 1  # slides become the unit
    first, second = collect_fold_results(given).values()
    quick = permutation_test(first, second, metric)
    monkeypatch.setattr(permutation, "_ADDITIVE_METRICS", frozenset())
    assert quick == permutation_test(first, second, metric)


@pytest.mark.parametrize("metric", ["auc", "f1"])
def test_sampled_arrangements_agree_with_all_of_them(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = collect_fold_results(answers({"a": 1.5, "b": 0.7}, patients=14)).values()
    exact = permutation_test(first, second, metric)
    monkeypatch.setattr(permutation, "_MAX_EXACT_ARRANGEMENTS", 0)
    assert permutation_test(first, second, metric) == pytest.approx(exact, abs=0.02)


def test_no_number_of_arrangements_shows_that_p_is_zero() -> None:
    first, second = collect_fold_results(answers({"a": 6, "b": 0})).values()
    assert permutation_test(first, second, "auc", draws=199) == 1 / 200


def test_the_scale_of_a_model_does_not_change_the_auc_test() -> None:
    given = answers({"a": 1.5, "b": 1})
    steep = replace(given, probabilities=given.probabilities.copy())
    of_b = steep.model == "b"
    steep.probabilities[of_b] = 1 / (1 + (1 / given.probabilities[of_b] - 1) ** 5)
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


@pytest.mark.parametrize(
    ("metric", "patients"), [("accuracy", 16), ("auc", 10), ("auc", 30), ("f1", 16)]
)
def test_equally_good_models_are_rarely_called_different(metric: str, patients: int) -> None:
    # 5 % of 200 data sets, and three standard errors
    assert false_claims(metric, "exchangeable", patients, folds=3, datasets=200) <= 0.096


@pytest.mark.slow
@pytest.mark.parametrize("metric", NULLS)
@pytest.mark.parametrize("patients", PATIENTS)
@pytest.mark.parametrize("folds", FOLDS)
def test_false_claims_stay_below_five_percent(metric: str, patients: int, folds: int) -> None:
    # 5 % of 1000 data sets, and three standard errors
    for null in NULLS[metric]:
        assert false_claims(metric, null, patients, folds, datasets=1000) <= 0.071, null


@pytest.mark.slow
def test_small_folds_that_are_repeated_make_no_more_false_claims() -> None:
    # ranks of six patients swapped as they are would claim 10 %
    assert false_claims("auc", "exchangeable", 58, 10, datasets=500, repeats=4) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("metric", NULLS)
def test_power_is_near_that_of_the_bootstrap_at_a_hundred_patients(metric: str) -> None:
    found = power(metric, patients=100, datasets=300)
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
