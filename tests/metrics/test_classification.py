"""Metrics against scikit-learn, loops that follow their definition, and hand calculation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from sacmil.errors import ConfigError, OptionError
from sacmil.evaluation.localization import LOCALIZATION_TITLES
from sacmil.metrics.classification import (
    CLASSIFICATION_METRICS,
    METRICS,
    WEIGHTED_METRICS,
    auc,
    average_precision,
)
from sacmil.tasks import Classification

few = settings(deadline=None, max_examples=30, derandomize=True)
scored = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=1, max_size=20)


@st.composite
def answered(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Labels, not always of every class, and probabilities, often tied, sometimes certain."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size, classes = draw(st.integers(1, 25)), draw(st.integers(2, 4))
    among = random.choice(classes, draw(st.integers(1, classes)), replace=False)
    values = random.integers(0, 5, (size, classes)).astype(np.float64)
    values[values.sum(1) == 0, 0] = 1
    return random.choice(among, size), values / values.sum(1, keepdims=True)


def against_rest(
    figure: Callable[..., float], labels: np.ndarray, probabilities: np.ndarray
) -> float:
    """scikit-learn's figure of class 1, or its mean over the classes that occur."""
    present = np.unique(labels)
    if len(present) == 1:
        return math.nan
    chosen = [1] if probabilities.shape[1] == 2 else present
    return float(np.mean([figure(labels == c, probabilities[:, c]) for c in chosen]))


REFERENCES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": lambda y, p: reference.accuracy_score(y, p.argmax(1)),
    "balanced_accuracy": lambda y, p: reference.balanced_accuracy_score(y, p.argmax(1)),
    "f1": lambda y, p: reference.f1_score(y, p.argmax(1), average="macro"),
    "kappa": lambda y, p: reference.cohen_kappa_score(
        y, p.argmax(1), weights="quadratic", labels=range(p.shape[1])
    ),
    "auc": lambda y, p: against_rest(reference.roc_auc_score, y, p),
    "average_precision": lambda y, p: against_rest(reference.average_precision_score, y, p),
    "brier": lambda y, p: (
        reference.brier_score_loss(y, p[:, 1], pos_label=1)
        if p.shape[1] == 2
        else reference.brier_score_loss(y, p, labels=range(p.shape[1]))
    ),
    "log_loss": lambda y, p: reference.log_loss(y, p, labels=range(p.shape[1])),
}


@few
@given(answered())
def test_metrics_are_those_of_scikit_learn(case: tuple[np.ndarray, np.ndarray]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that are not there
        expected = {name: figure(*case) for name, figure in REFERENCES.items()}
    found = {name: METRICS[name](*case) for name in REFERENCES}
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12, nan_ok=True)


@few
@given(answered())
def test_macro_auc_is_that_of_scikit_learn_when_every_class_is_there(
    case: tuple[np.ndarray, np.ndarray],
) -> None:
    labels, probabilities = case
    classes = probabilities.shape[1]
    if classes == 2 or len(np.unique(labels)) < classes:
        return
    expected = reference.roc_auc_score(labels, probabilities, multi_class="ovr")
    assert METRICS["auc"](labels, probabilities) == pytest.approx(expected, abs=1e-12)


@few
@given(answered(), st.integers(0, 2**32 - 1))
def test_weights_count_as_repeated_rows(case: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    labels, probabilities = case
    weights = np.random.default_rng(seed).poisson(1, (3, len(labels)))
    weights[:, 0] += weights.sum(1) == 0
    for name, metric in METRICS.items():
        together = WEIGHTED_METRICS[name](labels, probabilities, weights.astype(np.float64))
        apart = [metric(np.repeat(labels, w), np.repeat(probabilities, w, 0)) for w in weights]
        np.testing.assert_allclose(together, apart, rtol=1e-12, atol=1e-12, err_msg=name)


@few
@given(answered(), st.integers(0, 2**32 - 1))
def test_row_order_changes_nothing(case: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    labels, probabilities = case
    order = np.random.default_rng(seed).permutation(len(labels))
    expected = {name: metric(labels, probabilities) for name, metric in METRICS.items()}
    shuffled = {name: METRICS[name](labels[order], probabilities[order]) for name in METRICS}
    assert shuffled == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_calibration_error_by_hand() -> None:
    # sure 0.9, 0.9 (one right), 0.6 (right): bins (13/15, 14/15] and (8/15, 9/15]
    probabilities = [[0.1, 0.9], [0.9, 0.1], [0.4, 0.6]]
    expected = 2 / 3 * abs(0.5 - 0.9) + 1 / 3 * abs(1 - 0.6)
    assert METRICS["calibration_error"]([1, 1, 1], probabilities) == pytest.approx(expected)


@few
@given(answered())
def test_calibration_error_is_the_gap_of_each_bin_weighted_by_its_rows(
    case: tuple[np.ndarray, np.ndarray],
) -> None:
    labels, probabilities = case
    edges = np.linspace(0, 1, 16)
    sure, right = probabilities.max(1), probabilities.argmax(1) == labels
    expected = 0.0
    for low, high in pairwise(edges):
        inside = (sure > low) & (sure <= high)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    assert METRICS["calibration_error"](*case) == pytest.approx(expected, abs=1e-12)


def test_brier_by_hand() -> None:
    assert METRICS["brier"]([1, 0], [[0.2, 0.8], [0.7, 0.3]]) == pytest.approx(0.065)
    assert METRICS["brier"]([2], [[0.2, 0.3, 0.5]]) == pytest.approx(0.04 + 0.09 + 0.25)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("classes", [2, 3])
def test_certain_and_right_is_the_best_there_is(name: str, classes: int) -> None:
    labels = np.arange(12) % classes
    best = METRICS[name](labels, np.eye(classes)[labels])
    lower_is_better = CLASSIFICATION_METRICS[name].lower_is_better
    assert best == pytest.approx(0 if lower_is_better else 1, abs=1e-12)


@pytest.mark.parametrize("name", ["auc", "average_precision", "kappa"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("label", [0, 1])
def test_metrics_that_need_two_classes_are_nan_with_one(
    name: str, classes: int, label: int
) -> None:
    labels = np.full(4, label)
    assert math.isnan(METRICS[name](labels, np.eye(classes)[labels]))


def test_every_metric_has_a_title_and_is_known_by_name() -> None:
    task = Classification(("normal", "tumour"))
    assert [*CLASSIFICATION_METRICS] == [*METRICS] == [*WEIGHTED_METRICS] == [*task.metrics]
    titles = [one.title for one in CLASSIFICATION_METRICS.values()]
    titles += LOCALIZATION_TITLES.values()
    assert all(titles)
    assert len({*titles}) == len(METRICS) + len(LOCALIZATION_TITLES)
    assert {name for name in METRICS if CLASSIFICATION_METRICS[name].lower_is_better} == {
        *("brier", "calibration_error", "log_loss")
    }
    assert all(task.get_metric(name) is CLASSIFICATION_METRICS[name] for name in METRICS)
    with pytest.raises(ConfigError, match=r"'acuracy'.*did you mean 'accuracy'"):
        task.get_metric("acuracy")


def test_names_of_metrics_are_listed_once_and_all_of_them_by_one_word() -> None:
    task = Classification(("normal", "tumour"))
    assert task.list_metrics("auc") == ("auc",)
    assert task.list_metrics(["auc", "f1", "auc"]) == ("auc", "f1")
    assert task.list_metrics("all") == tuple(METRICS)
    assert task.list_metrics(None) == ("accuracy", "auc", "f1")
    with pytest.raises(OptionError, match="`metrics` is empty; expected names among accuracy, auc"):
        task.list_metrics([])
    with pytest.raises(ConfigError, match=r"'acuracy'.*did you mean 'accuracy'"):
        task.list_metrics(["auc", "acuracy"])


@few
@given(answered(), st.integers(0, 2**32 - 1))
def test_what_evaluation_computes_is_the_metric_of_the_classes(
    case: tuple[np.ndarray, np.ndarray], seed: int
) -> None:
    labels, probabilities = case
    weights = np.random.default_rng(seed).poisson(1, (3, len(labels))).astype(np.float64)
    targets = labels[:, None].astype(np.float64)
    for name, metric in CLASSIFICATION_METRICS.items():
        together = metric.formula(targets, probabilities, weights)
        expected = WEIGHTED_METRICS[name](labels, probabilities, weights)
        np.testing.assert_array_equal(together, expected, err_msg=name)
        once = metric.compute(targets, probabilities)
        np.testing.assert_array_equal(once, METRICS[name](labels, probabilities), err_msg=name)


def pairs_won(labels: list[int], scores: list[float]) -> float:
    """The share of (positive, negative) pairs in the right order, ties half."""
    positive = [s for y, s in zip(labels, scores, strict=True) if y]
    negative = [s for y, s in zip(labels, scores, strict=True) if not y]
    won = sum((p > n) + 0.5 * (p == n) for p in positive for n in negative)
    return won / (len(positive) * len(negative)) if positive and negative else math.nan


@few
@given(scored)
def test_auc_is_the_share_of_pairs_in_order_with_ties_half(rows: list[tuple[int, int]]) -> None:
    labels, scores = map(list, zip(*rows, strict=True))
    assert auc(labels, scores) == pytest.approx(pairs_won(labels, scores), nan_ok=True)


@few
@given(scored)
def test_auc_of_turned_scores_is_the_rest_to_one(rows: list[tuple[int, int]]) -> None:
    labels, scores = map(np.array, zip(*rows, strict=True))
    assert auc(labels, -scores) == pytest.approx(1 - auc(labels, scores), nan_ok=True)


@few
@given(scored)
def test_auc_depends_on_the_order_of_scores_only(rows: list[tuple[int, int]]) -> None:
    labels, scores = map(np.array, zip(*rows, strict=True))
    assert auc(labels, np.exp(scores)) == pytest.approx(auc(labels, scores), nan_ok=True)


def test_infinite_scores_tie_like_others() -> None:
    assert auc([0, 1, 1, 0], [math.inf, math.inf, -math.inf, -math.inf]) == 0.5


@pytest.mark.parametrize("labels", [[], [0, 0, 0], [1, 1, 1], [True]])
@pytest.mark.parametrize("figure", [auc, average_precision])
def test_a_ranking_of_one_class_is_nan(labels: list[int], figure: Callable[..., float]) -> None:
    assert math.isnan(figure(labels, np.arange(len(labels))))


@pytest.mark.parametrize("figure", [auc, average_precision])
def test_a_ranking_by_a_nan_score_is_nan(figure: Callable[..., float]) -> None:
    assert math.isnan(figure([0, 1, 1], [0.1, math.nan, 0.3]))
