"""Means and spreads over folds as the paper's tables have them."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from answers import answers, shuffled
from scipy.stats import norm

from sacmil.errors import ConfigError
from sacmil.evaluation.fold_results import FoldResult, average_by_patient, collect_fold_results
from sacmil.evaluation.summary import (
    check_level_and_draws,
    fold_means,
    percentile_interval,
    resample_patients,
    summarize,
)
from sacmil.metrics.classification import CLASSIFICATION_METRICS, METRICS, WEIGHTED_METRICS
from sacmil.results import Predictions
from sacmil.tasks import Classification

NOT_RESAMPLED = {name for name, one in CLASSIFICATION_METRICS.items() if not one.has_interval}


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


def test_without_names_the_metrics_are_those_of_the_papers_tables() -> None:
    assert Classification.default_metrics == ("accuracy", "auc", "f1")
    assert tuple(summarize(answers({"a": 1}), draws=20)["a"]) == Classification.default_metrics


def test_a_figure_knows_the_title_of_its_metric_and_which_way_it_points() -> None:
    for name, figure in summarize(answers({"a": 1}), metrics="all", draws=2)["a"].items():
        known = CLASSIFICATION_METRICS[name]
        assert (figure.title, figure.lower_is_better) == (known.title, known.lower_is_better)


def test_calibration_error_has_no_interval_for_every_draw_is_too_high() -> None:
    assert {"calibration_error"} == NOT_RESAMPLED
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


# Intervals hold what they promise, and no evidence is counted twice.


TASK = Classification(("negative", "positive"))
GAP = 1.0
TRUE_AUC = float(norm.cdf(GAP / math.sqrt(2)))


def trial(fold: int, patients: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> FoldResult:
    p = norm.cdf(scores - GAP / 2)
    targets, values = labels[:, None].astype(np.float64), np.stack([1 - p, p], axis=1)[None]
    return FoldResult("a", fold, patients, patients, TASK, targets, values)


def simulated(random: np.random.Generator, kind: str) -> list[FoldResult]:
    """Normal scores, GAP apart: two folds of 40, or four tests of the same 60 by kindred models,
    who are dealt each time into ten folds of six where folds are small."""
    size = 40 if kind == "folds" else 60
    labels = np.arange(size) % 2
    ids = np.array([f"p{i:02d}" for i in range(size)])
    if kind == "folds":
        names = [np.char.add(f"{fold}", ids) for fold in range(2)]
        noise = random.normal(size=(2, size))
    else:
        names = [ids] * 4
        noise = math.sqrt(0.9) * random.normal(size=size)
        noise = noise + math.sqrt(0.1) * random.normal(size=(4, size))
    whole = [
        trial(fold, names[fold], labels, noise[fold] + GAP * labels) for fold in range(len(noise))
    ]
    if kind == "small folds":
        return [part for one in whole for part in dealt(one, random)]
    return whole


def dealt(whole: FoldResult, random: np.random.Generator) -> list[FoldResult]:
    """Ten folds, each with as many of both classes."""
    order = np.argsort(random.permutation(len(whole.targets)) + 1000 * whole.targets[:, 0])
    return [
        FoldResult(
            whole.model,
            10 * whole.fold + fold,
            whole.units[order[fold::10]],
            whole.patients[order[fold::10]],
            whole.task,
            whole.targets[order[fold::10]],
            whole.values[:, order[fold::10]],
        )
        for fold in range(10)
    ]


@pytest.mark.parametrize(
    "kind", ["folds", "one test set", pytest.param("small folds", marks=pytest.mark.slow)]
)
def test_intervals_cover_the_truth_as_often_as_they_say(kind: str) -> None:
    # 80 data sets: nine in ten ± 0.034 (one standard error), and a little less for small samples
    random = np.random.default_rng(1)
    held = 0
    for number in range(80):
        trials = simulated(random, kind)
        counts = resample_patients(trials, draws=100, seed=number)
        assert counts is not None
        low, high = percentile_interval(fold_means(trials, counts, "auc"), 0.9)
        held += low <= TRUE_AUC <= high
    assert 0.8 <= held / 80 <= 0.98


@pytest.mark.parametrize("metric", ["accuracy", "auc", "f1", "kappa", "brier"])
def test_a_resample_is_what_repeated_rows_would_give(metric: str) -> None:
    trials = collect_fold_results(answers({"a": 1}, patients=90, seeds=2, classes=3))["a"]
    counts = resample_patients(trials, draws=5, seed=0)
    assert counts is not None
    expected = [
        np.mean(
            [
                METRICS[metric](np.repeat(t.targets[:, 0], c[draw]), np.repeat(p, c[draw], axis=0))
                for t, c in zip(trials, counts, strict=True)
                for p in t.values
            ]
        )
        for draw in range(5)
    ]
    np.testing.assert_allclose(fold_means(trials, counts, metric), expected, rtol=1e-12)


def test_a_fold_keeps_its_number_of_patients_in_every_draw() -> None:
    trials = collect_fold_results(answers({"a": 1}))["a"]
    counts = resample_patients(trials, draws=40, seed=0)
    assert counts is not None
    for fold, count in zip(trials, counts, strict=True):
        assert (count.sum(1) == len(fold.units)).all()


def test_folds_without_a_patient_in_common_are_drawn_apart() -> None:
    trials = collect_fold_results(answers({"a": 1}, folds=2))["a"]
    counts = resample_patients(trials, draws=300, seed=0)
    assert counts is not None
    together = np.corrcoef(counts[0][:, 0], counts[1][:, 0])[0, 1]
    assert abs(together) < 0.2


def test_a_patient_of_several_folds_is_drawn_equally_often_in_each() -> None:
    trials = collect_fold_results(answers({"a": 1}, patients=20, folds=2, repeats=3))["a"]
    counts = resample_patients(trials, draws=30, seed=0)
    assert counts is not None
    drawn: dict[str, np.ndarray] = {}
    for fold, count in zip(trials, counts, strict=True):
        for place, patient in enumerate(fold.patients.tolist()):
            np.testing.assert_array_equal(
                drawn.setdefault(patient, count[:, place]), count[:, place]
            )
    assert len(drawn) == 20


def copied(predictions: Predictions, times: int) -> Predictions:
    """The same test several times over, as further folds."""
    parts = [predictions.select(np.arange(len(predictions))) for _ in range(times)]
    for number, part in enumerate(parts):
        part.fold[:] += number * (predictions.fold.max() + 1)
    return Predictions.concatenate(parts)


def test_testing_the_same_patients_again_makes_nothing_surer() -> None:
    given = answers({"a": 1}, folds=1)
    once, often = (summarize(p, draws=100)["a"]["auc"] for p in (given, copied(given, 5)))
    assert (often.low, often.high) == pytest.approx((once.low, once.high), abs=1e-12)


def two_labels_each(copies: int) -> Predictions:
    """Patients with a slide of each class, and copies of those slides."""
    given = answers({"a": 1}, patients=40, folds=1)
    parts = [given.select(np.arange(40)) for _ in range(copies)]
    for number, part in enumerate(parts):
        part.patient_id[:] = [f"q{i // 2}" for i in range(40)]
        part.slide_id[:] = [f"{number}-{i}" for i in range(40)]
    return Predictions.concatenate(parts)


@pytest.mark.parametrize("metric", ["accuracy", "auc", "average_precision", "brier"])
def test_more_slides_of_the_same_patients_make_nothing_surer(metric: str) -> None:
    one, four = (
        summarize(two_labels_each(copies), metrics=[metric], draws=100)["a"][metric]
        for copies in (1, 4)
    )
    assert (four.low, four.high) == pytest.approx((one.low, one.high), abs=1e-12)


def test_slides_of_a_patient_are_drawn_together() -> None:
    trials = collect_fold_results(two_labels_each(2))["a"]
    counts = resample_patients(trials, draws=20, seed=0)
    assert counts is not None
    for patient in np.unique(trials[0].patients):
        own = counts[0][:, trials[0].patients == patient]
        assert (own == own[:, :1]).all()


def test_a_draw_that_loses_a_class_is_drawn_again() -> None:
    given = answers({"a": 1}, patients=24, folds=1)
    kept = np.isin(given.patient_id, ["p1", "p3", "p5"])
    rare = collect_fold_results(given.select((given.label == 0) | kept))["a"]
    counts = resample_patients(rare, draws=200, seed=0)
    assert counts is not None
    assert len(counts[0]) == 200
    assert (counts[0][:, rare[0].targets[:, 0] == 1] > 0).any(1).all()
    assert np.isfinite(fold_means(rare, counts, "auc")).all()


def test_folds_count_by_what_was_drawn_of_them_where_hardly_a_draw_is_whole() -> None:
    trials = simulated(np.random.default_rng(0), "small folds")
    counts = resample_patients(trials, draws=50, seed=0)
    assert counts is not None
    means, whole = fold_means(trials, counts, "auc"), []
    for draw in range(50):
        shares, values = [], []
        for each, count in zip(trials, counts, strict=True):
            drawn = [count[draw][each.targets[:, 0] == label].sum() for label in (0, 1)]
            if all(drawn):
                shares.append(drawn[0] * drawn[1])  # of three each
                values.append(fold_means([each], [count[draw : draw + 1]], "auc")[0])
        whole.append(len(values))
        assert means[draw] == pytest.approx(np.average(values, weights=shares))
    assert 20 <= min(whole) < 40


@pytest.mark.parametrize(("folds", "rare", "common"), [(10, 1, 1), (5, 1, 10), (5, 2, 2)])
def test_a_lone_patient_of_a_class_proves_nothing(folds: int, rare: int, common: int) -> None:
    """Equally good models must not differ because resamples keep every patient of a class."""
    random = np.random.default_rng(0)
    labels = np.r_[np.zeros(common, np.int64), np.ones(rare, np.int64)]
    significant = 0
    for number in range(30):
        both = []
        for fold in range(folds):
            ids = np.array([f"{fold}-{i}" for i in range(len(labels))])
            noise = random.normal(size=(2, len(labels)))
            both.append([trial(fold, ids, labels, GAP * labels + each) for each in noise])
        counts = resample_patients([pair[0] for pair in both], draws=100, seed=number)
        assert counts is not None
        first, second = (fold_means(each, counts, "auc") for each in zip(*both, strict=True))
        low, high = percentile_interval(first - second, 0.95)
        significant += not low <= 0 <= high
    assert significant <= 6, "of 30, two expected; drawn within folds it is up to 25"


def test_one_or_two_patients_of_a_class_in_all_have_no_interval() -> None:
    given = answers({"a": 1}, patients=24, folds=1)
    rare = given.select((given.label == 0) | np.isin(given.patient_id, ["p1", "p3"]))
    assert resample_patients(collect_fold_results(rare)["a"], draws=20, seed=0) is None


def test_small_folds_with_a_rare_class_bias_no_figure() -> None:
    """One of ten in every fold, thrice dealt: an answer that never names it is right in 90 %."""
    random = np.random.default_rng(0)
    labels = (np.arange(200) % 10 == 0).astype(np.int64)
    ids = np.array([f"p{i:03d}" for i in range(200)])
    common, rare = np.flatnonzero(labels == 0), np.flatnonzero(labels == 1)
    trials = []
    for fold in range(60):
        if fold % 20 == 0:
            common, rare = random.permutation(common), random.permutation(rare)
        rows = np.r_[common[fold % 20 :: 20], rare[fold % 20]]
        trials.append(trial(fold, ids[rows], labels[rows], random.normal(size=10) - 3))
    counts = resample_patients(trials, draws=300, seed=0)
    assert counts is not None
    for metric in ("accuracy", "brier", "log_loss"):
        drawn = fold_means(trials, counts, metric)
        truth = np.mean([each.compute_metric(metric) for each in trials])
        assert abs(drawn.mean() - truth) < 0.2 * drawn.std(), metric
    auc = fold_means(trials, counts, "auc")
    assert (
        abs(auc.mean() - np.mean([each.compute_metric("auc") for each in trials])) < 0.5 * auc.std()
    )
    assert np.isnan(fold_means(trials, counts, "f1")).all(), "no weights are right for it"


def test_too_few_patients_for_draws_give_no_interval_instead_of_a_wrong_one() -> None:
    given = answers({"a": 1}, patients=12, folds=1, classes=12)
    assert resample_patients(collect_fold_results(given)["a"], draws=20, seed=0) is None
    figure = summarize(given, draws=20)["a"]["accuracy"]
    assert math.isfinite(figure.mean)
    assert math.isnan(figure.low)


def test_more_patients_make_it_surer() -> None:
    few, many = (answers({"a": 1}, patients=size) for size in (60, 600))
    widths = [f.high - f.low for f in (summarize(p, draws=200)["a"]["auc"] for p in (few, many))]
    assert widths[1] < widths[0] / 2


def test_a_higher_level_is_wider() -> None:
    given = answers({"a": 1})
    narrow, wide = (summarize(given, draws=200, level=x)["a"]["auc"] for x in (0.8, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_large_tests_are_computed_in_parts_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials = collect_fold_results(answers({"a": 1}))["a"]
    counts = resample_patients(trials, draws=50, seed=0)
    assert counts is not None
    whole = fold_means(trials, counts, "auc")
    monkeypatch.setattr("sacmil.evaluation.summary._CHUNK_WEIGHTS", 60)
    np.testing.assert_array_equal(fold_means(trials, counts, "auc"), whole)


@pytest.mark.parametrize("level", [0, 1, 95, math.nan])
def test_a_level_that_is_no_share_is_reported(level: float) -> None:
    with pytest.raises(ConfigError, match=r"level is .*0\.95"):
        check_level_and_draws(level=level, draws=10)


def test_no_draws_are_reported() -> None:
    with pytest.raises(ConfigError, match=r"draws is 0.*2000"):
        check_level_and_draws(level=0.9, draws=0)
