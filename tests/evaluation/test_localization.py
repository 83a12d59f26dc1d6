"""Scores against instance truth, slide by slide and all together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from localised import localised
from sklearn.metrics import average_precision_score, roc_auc_score

from sacmil.errors import ConfigError, RunError
from sacmil.evaluation.comparison import list_conclusions
from sacmil.evaluation.localization import (
    compare_localization,
    measure_localization,
    summarize_localization,
)
from sacmil.results import SlideLocalization


def made(seed: int, slides: int = 4) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    truth = {f"s{i}": random.integers(0, 2, 30 + i) for i in range(slides)}
    scores = {slide: y + 2 * random.normal(size=len(y)) for slide, y in truth.items()}
    return scores, truth


def test_figures_are_those_of_scikit_learn() -> None:
    scores, truth = made(0)
    found = measure_localization(scores, truth)
    assert found.auc == pytest.approx(np.mean([roc_auc_score(truth[s], scores[s]) for s in truth]))
    assert found.average_precision == pytest.approx(
        np.mean([average_precision_score(truth[s], scores[s]) for s in truth])
    )
    everything = [np.concatenate([by[s] for s in truth]) for by in (truth, scores)]
    assert found.pooled_auc == pytest.approx(roc_auc_score(*everything))
    assert found.pooled_average_precision == pytest.approx(average_precision_score(*everything))
    assert found.slides == 4


def test_a_slide_of_one_kind_counts_only_in_the_pool() -> None:
    scores, truth = made(1)
    single = measure_localization(scores, truth)
    more = measure_localization(scores | {"n": np.full(5, 9.0)}, truth | {"n": np.zeros(5)})
    assert (more.auc, more.average_precision, more.slides) == (
        single.auc,
        single.average_precision,
        4,
    )
    assert more.pooled_auc < single.pooled_auc


def test_instances_of_unknown_truth_are_left_out() -> None:
    scores, truth = made(2)
    more_scores = {s: np.r_[v, 99.0] for s, v in scores.items()}
    more_truth = {s: np.r_[v, -1] for s, v in truth.items()}
    assert measure_localization(more_scores, more_truth) == measure_localization(scores, truth)


def test_any_label_above_zero_is_positive() -> None:
    scores, truth = made(3)
    assert measure_localization(
        scores, {s: 3 * v for s, v in truth.items()}
    ) == measure_localization(scores, truth)


def test_boolean_truth_will_do() -> None:
    scores, truth = made(3)
    assert measure_localization(
        scores, {s: v == 1 for s, v in truth.items()}
    ) == measure_localization(scores, truth)


@pytest.mark.parametrize("truth", [{}, {"a": np.zeros(3)}, {"a": np.full(3, -1)}])
def test_slides_without_both_labels_give_nan(truth: dict[str, np.ndarray]) -> None:
    found = measure_localization({slide: np.arange(3.0) for slide in truth}, truth)
    assert all(map(math.isnan, (found.auc, found.average_precision, found.pooled_auc)))
    assert found.slides == 0


def test_scores_without_truth_and_of_another_length_are_named() -> None:
    with pytest.raises(RunError, match="b: has scores but no instance labels"):
        measure_localization({"b": [1.0]}, {"a": [1]})
    with pytest.raises(RunError, match=r"a: .*\(2,\).*\(3,\)"):
        measure_localization({"a": [1.0, 2.0]}, {"a": [0, 1, 1]})


# Localisation over patients: means, intervals, and a permutation test that is one.


def row(slide: str, patient: str, auc: float, **changes: object) -> SlideLocalization:
    made = SlideLocalization(slide, patient, 0, 0, "m", 10, 2, auc, auc / 2)
    return made._replace(**changes)


def test_the_mean_is_over_patients_of_slides_of_folds_and_seeds() -> None:
    rows = [
        row("a", "p", 0.5),
        row("a", "p", 0.7, seed=1),
        row("b", "p", 1.0, positives=6),
        row("c", "q", 0.6, fold=1),
        row("d", "r", math.nan, positives=0),
    ]
    found = summarize_localization(rows)["m"]
    assert found.estimates["localisation_auc"].mean == pytest.approx((0.8 + 0.6) / 2)
    assert found.estimates["localisation_ap"].mean == pytest.approx((0.4 + 0.3) / 2)
    assert found.chance == pytest.approx(((0.2 + 0.6) / 2 + 0.2) / 2)
    assert (found.patients, found.slides, found.folds) == (2, 3, 2)


def test_an_interval_needs_three_patients_and_holds_the_mean() -> None:
    two = summarize_localization([row(name, name, 0.5) for name in "ab"])["m"]
    assert math.isnan(two.estimates["localisation_auc"].low)
    rows = localised({"m": 0.8})
    figure = summarize_localization(rows, draws=300)["m"].estimates["localisation_auc"]
    assert figure.low < figure.mean < figure.high
    values = [one.auc for one in rows if one.has_both_labels]
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    assert figure.high - figure.low == pytest.approx(2 * 1.96 * error, rel=0.2)


def test_slides_of_one_kind_give_nothing() -> None:
    assert summarize_localization([row("a", "p", math.nan, positives=0)]) == {}


def test_the_better_model_is_claimed_and_equal_ones_are_not() -> None:
    rows = localised({"strong": 0.9, "weak": 0.7, "twin": 0.7}, seeds=2)
    found = compare_localization(rows, draws=300)
    assert [(pair.first, pair.second) for pair in found] == [
        ("strong", "twin"),
        ("strong", "weak"),
        ("twin", "weak"),
    ]
    means = summarize_localization(rows, draws=10)
    aucs = {name: one.estimates["localisation_auc"].mean for name, one in means.items()}
    for pair in found:
        assert pair.difference == pytest.approx(aucs[pair.first] - aucs[pair.second])
        assert pair.low < pair.difference < pair.high
    first, second, third = list_conclusions(found)
    assert first.startswith("strong is better than ")
    assert " Localisation AUC [" in first
    assert second.startswith("strong is better than ")
    assert third.startswith("No significant difference between ")


def test_p_can_survive_the_correction_for_many_pairs() -> None:
    rows = localised({f"m{number}": 0.5 for number in range(8)} | {"best": 0.95})
    found = compare_localization(rows, draws=100)
    assert all(pair.p_holm < 0.05 for pair in found if "best" in (pair.first, pair.second))


def test_against_one_model_fewer_pairs_are_compared() -> None:
    rows = localised({"a": 0.8, "b": 0.7, "c": 0.7})
    found = compare_localization(rows, metric="localisation_ap", against="b", draws=20)
    assert [(pair.first, pair.second) for pair in found] == [("b", "a"), ("b", "c")]
    with pytest.raises(RunError, match="known are: a, b, c"):
        compare_localization(rows, against="z", draws=20)


def test_models_with_labels_on_different_slides_are_rejected() -> None:
    rows = localised({"a": 0.8, "b": 0.7})
    with pytest.raises(RunError, match=r"a and b have instance labels on different slides \(s39,"):
        compare_localization(rows[:-1])


def test_an_unknown_metric_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'localisation_auc'"):
        compare_localization(localised({"a": 0.8, "b": 0.7}), metric="localization_auc")
