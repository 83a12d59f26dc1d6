"""Means and spreads over folds as the paper's tables have them."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from answers import answers, shuffled

from sacmil.errors import ConfigError
from sacmil.evaluation.intervals import NOT_RESAMPLED
from sacmil.evaluation.metrics import METRICS, WEIGHTED_METRICS
from sacmil.evaluation.patient_level import average_by_patient
from sacmil.evaluation.summary import DEFAULT_METRICS, summarize


def test_a_figure_is_the_mean_and_sample_deviation_over_folds() -> None:
    given = answers({"a": 1})
    folds = [given.select(given.fold == fold) for fold in range(3)]
    figure = summarize(given, draws=50)["a"]["f1"]
    expected = [METRICS["f1"](fold.label, fold.probabilities) for fold in folds]
    assert figure.values == pytest.approx(expected)
    assert figure.mean == pytest.approx(statistics.mean(expected))
    assert figure.std == pytest.approx(statistics.stdev(expected))


def test_every_model_has_every_metric_in_order() -> None:
    found = summarize(answers({"b": 1, "a": 2}, classes=3), metrics=tuple(METRICS), draws=20)
    assert {model: tuple(figures) for model, figures in found.items()} == {
        "a": tuple(METRICS),
        "b": tuple(METRICS),
    }
    for figures in found.values():
        for metric in {*METRICS} - NOT_RESAMPLED:
            figure = figures[metric]
            assert figure.low <= figure.mean <= figure.high, metric
    assert tuple(summarize(answers({"a": 1}), draws=20)["a"]) == DEFAULT_METRICS


def test_calibration_error_has_no_interval_for_every_draw_is_too_high() -> None:
    given = answers({"a": 1})
    figure = summarize(given, metrics=["calibration_error"], draws=20)["a"]["calibration_error"]
    assert math.isnan(figure.low)
    assert math.isnan(figure.high)
    labels, probabilities = given.label, given.probabilities
    weights = np.random.default_rng(0).poisson(1, (200, len(labels))).astype(float)
    drawn = WEIGHTED_METRICS["calibration_error"](labels, probabilities, weights)
    assert np.mean(drawn) > METRICS["calibration_error"](labels, probabilities) * 1.2


def test_one_fold_has_no_spread_but_an_interval() -> None:
    figure = summarize(answers({"a": 1}, folds=1), draws=100)["a"]["auc"]
    assert math.isnan(figure.std)
    assert figure.low < figure.mean < figure.high


def test_a_fold_of_one_class_leaves_its_mean_undefined() -> None:
    given = answers({"a": 1})
    kept = given.select((given.fold > 0) | (given.label == 1))
    found = summarize(kept, draws=50)["a"]
    assert math.isnan(found["auc"].values[0])
    assert math.isnan(found["auc"].mean)
    assert math.isnan(found["auc"].low)
    assert found["accuracy"].low <= found["accuracy"].mean <= found["accuracy"].high


def test_a_class_that_a_fold_lacks_is_left_out_of_its_mean() -> None:
    given = answers({"a": 1}, classes=3)
    kept = given.select((given.fold > 0) | (given.label > 0))
    assert all(math.isfinite(value) for value in summarize(kept, draws=50)["a"]["auc"].values)


def test_row_order_changes_nothing() -> None:
    given = answers({"a": 1, "b": 1}, seeds=2, slides=2)
    assert summarize(given, draws=50) == summarize(shuffled(given), draws=50)


def test_the_same_seed_gives_the_same_interval_and_another_a_different_one() -> None:
    given = answers({"a": 1})
    one, same, other = (summarize(given, draws=50, seed=seed)["a"]["auc"] for seed in (3, 3, 4))
    assert one == same
    assert (one.low, one.mean) != (other.low, other.mean)
    assert one.mean == other.mean


def test_slides_are_summed_up_as_patients() -> None:
    given = answers({"a": 1}, slides=3)
    assert summarize(given, draws=20) == summarize(average_by_patient(given), draws=20)


def test_a_model_does_not_change_by_what_stands_beside_it() -> None:
    given = answers({"a": 1, "b": 1})
    single = given.select(given.model == "a")
    assert summarize(given, draws=20)["a"] == summarize(single, draws=20)["a"]


@pytest.mark.parametrize("wrong", [{"level": 1.0}, {"level": 95}, {"draws": 0}])
def test_a_wrong_setting_is_reported(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        summarize(answers({"a": 1}), **wrong)  # type: ignore[arg-type]


def test_an_unknown_metric_is_reported_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'brier'"):
        summarize(answers({"a": 1}), metrics=["briar"])


def test_shuffled_labels_are_at_chance() -> None:
    given = answers({"a": 0}, patients=400, folds=2)
    figure = summarize(given, draws=200)["a"]["auc"]
    assert figure.low < 0.5 < figure.high
    assert np.ptp([figure.low, figure.high]) < 0.2
