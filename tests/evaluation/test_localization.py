"""Scores against instance truth, slide by slide and all together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from sacmil.errors import RunError
from sacmil.evaluation.localization import measure_localization


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
