"""Means and spreads over folds as the paper's tables have them."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from answers import answers, shuffled

from sacmil.errors import ConfigError
from sacmil.evaluation.intervals import NOT_RESAMPLED
from sacmil.evaluation.metrics import METRICS, WEIGHTED
from sacmil.evaluation.summary import USUAL, summarise
from sacmil.evaluation.units import to_units


def test_a_figure_is_the_mean_and_sample_deviation_over_folds() -> None:
    given = answers({"a": 1})
    folds = [given.where(given.fold == fold) for fold in range(3)]
    figure = summarise(given, draws=50)["a"]["f1"]
    expected = [METRICS["f1"](fold.label, fold.probabilities) for fold in folds]
    assert figure.values == pytest.approx(expected)
    assert figure.mean == pytest.approx(statistics.mean(expected))
    assert figure.std == pytest.approx(statistics.stdev(expected))


def test_every_model_has_every_metric_in_order() -> None:
    found = summarise(answers({"b": 1, "a": 2}, classes=3), metrics=tuple(METRICS), draws=20)
    assert {model: tuple(figures) for model, figures in found.items()} == {
        "a": tuple(METRICS),
        "b": tuple(METRICS),
    }
    for figures in found.values():
        for metric in {*METRICS} - NOT_RESAMPLED:
            figure = figures[metric]
            assert figure.low <= figure.mean <= figure.high, metric
    assert tuple(summarise(answers({"a": 1}), draws=20)["a"]) == USUAL


def test_calibration_error_has_no_interval_for_every_draw_is_too_high() -> None:
    given = answers({"a": 1})
    figure = summarise(given, metrics=["calibration_error"], draws=20)["a"]["calibration_error"]
    assert math.isnan(figure.low)
    assert math.isnan(figure.high)
    labels, probabilities = given.label, given.probabilities
    weights = np.random.default_rng(0).poisson(1, (200, len(labels))).astype(float)
    drawn = WEIGHTED["calibration_error"](labels, probabilities, weights)
    assert np.mean(drawn) > METRICS["calibration_error"](labels, probabilities) * 1.2


def test_one_fold_has_no_spread_but_an_interval() -> None:
    figure = summarise(answers({"a": 1}, folds=1), draws=100)["a"]["auc"]
    assert math.isnan(figure.std)
    assert figure.low < figure.mean < figure.high


def test_a_fold_of_one_class_leaves_its_mean_undefined() -> None:
    given = answers({"a": 1})
    kept = given.where((given.fold > 0) | (given.label == 1))
    found = summarise(kept, draws=50)["a"]
    assert math.isnan(found["auc"].values[0])
    assert math.isnan(found["auc"].mean)
    assert math.isnan(found["auc"].low)
    assert found["accuracy"].low <= found["accuracy"].mean <= found["accuracy"].high


def test_a_class_that_a_fold_lacks_is_left_out_of_its_mean() -> None:
    given = answers({"a": 1}, classes=3)
    kept = given.where((given.fold > 0) | (given.label > 0))
    assert all(math.isfinite(value) for value in summarise(kept, draws=50)["a"]["auc"].values)


def test_row_order_changes_nothing() -> None:
    given = answers({"a": 1, "b": 1}, seeds=2, slides=2)
    assert summarise(given, draws=50) == summarise(shuffled(given), draws=50)


def test_the_same_seed_gives_the_same_interval_and_another_a_different_one() -> None:
    given = answers({"a": 1})
    one, same, other = (summarise(given, draws=50, seed=seed)["a"]["auc"] for seed in (3, 3, 4))
    assert one == same
    assert (one.low, one.mean) != (other.low, other.mean)
    assert one.mean == other.mean


def test_slides_are_summed_up_as_patients() -> None:
    given = answers({"a": 1}, slides=3)
    assert summarise(given, draws=20) == summarise(to_units(given), draws=20)


def test_a_model_does_not_change_by_what_stands_beside_it() -> None:
    given = answers({"a": 1, "b": 1})
    alone = given.where(given.model == "a")
    assert summarise(given, draws=20)["a"] == summarise(alone, draws=20)["a"]


@pytest.mark.parametrize("wrong", [{"level": 1.0}, {"level": 95}, {"draws": 0}])
def test_a_wrong_setting_is_told(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        summarise(answers({"a": 1}), **wrong)  # type: ignore[arg-type]


def test_an_unknown_metric_is_told_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'brier'"):
        summarise(answers({"a": 1}), metrics=["briar"])


def test_shuffled_labels_are_at_chance() -> None:
    given = answers({"a": 0}, patients=400, folds=2)
    figure = summarise(given, draws=200)["a"]["auc"]
    assert figure.low < 0.5 < figure.high
    assert np.ptp([figure.low, figure.high]) < 0.2
