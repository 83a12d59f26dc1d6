"""Risk groups of survival runs: who is in them, how they are compared, and what is drawn."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exhaustive import mostly_slow
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text
from predicted import predicted

from sacmil import tasks
from sacmil.errors import RunError
from sacmil.evaluation import survival
from sacmil.evaluation.comparison import compare_models
from sacmil.evaluation.fold_results import collect_fold_results
from sacmil.evaluation.plots import render_figure
from sacmil.evaluation.report import PLOTS, TABLES
from sacmil.evaluation.summary import summarize
from sacmil.evaluation.survival import (
    format_hazard_ratio,
    format_median,
    risk_by_patient_table,
    risk_group_table,
    risk_groups,
)
from sacmil.evaluation.survival_plots import (
    average_auc,
    compute_auc_curves,
    draw_auc_over_time,
    draw_kaplan_meier,
    draw_survival_calibration,
    list_ticks,
)
from sacmil.evaluation.table_format import FORMATS, TableStyle, render_table
from sacmil.metrics import survival as formulas
from sacmil.results import PREDICTIONS_FILE, Predictions, write_predictions
from sacmil.tasks.survival import PERCENTILE, RISK, Survival
from sacmil.workflows.evaluate import evaluate

DRAWERS = (draw_kaplan_meier, draw_auc_over_time, draw_survival_calibration)
TIMES = (12.0, 24.0, 36.0, 48.0, 60.0)
TASK = Survival("OS_MONTHS", "OS_STATUS", unit="months", horizons=(12, 36, 60), curve_times=TIMES)
STYLE = TableStyle()
KINDS = [
    kind for kind in vars(tasks).values() if isinstance(kind, type) and issubclass(kind, tasks.Task)
]


def simulate(
    models: tuple[str, ...] = ("a",),
    *,
    patients: int = 60,
    folds: int = 3,
    seeds: int = 1,
    slides: int = 1,
    noise: float = 0.7,
) -> Predictions:
    """Predictions of models that know the hazard up to noise, with rows of training patients."""
    random = np.random.default_rng(0)
    hazard = random.normal(size=patients)
    own = 50 * random.exponential(size=patients) * np.exp(-hazard)
    censored = random.uniform(5, 120, size=patients)
    targets = np.stack([np.minimum(own, censored), own <= censored], axis=1)
    rows, values = [], []
    for model in models:
        for seed in range(seeds):
            for fold in range(folds):
                risk = hazard[:, None] + noise * random.normal(size=(patients, slides))
                is_test = np.arange(patients) % folds == fold
                training = risk[~is_test].mean(axis=1) if folds > 1 else risk.mean(axis=1)
                quantiles = np.quantile(training, np.linspace(0, 1, 101))
                for patient, slide in np.ndindex(risk.shape):
                    one = risk[patient, slide]
                    split = "test" if is_test[patient] else "train"
                    ids = (f"s{patient}-{slide}", f"p{patient}", split, fold, seed, model)
                    rows.append((*ids, tuple(targets[patient])))
                    curve = np.exp(-np.array(TIMES) / 50 * np.exp(min(one, 5.0)))
                    values.append([one, (one > quantiles).mean(), *curve])
    return Predictions.from_rows(TASK.card, rows, values)


def make_table(rows: list[tuple[Any, ...]]) -> Predictions:
    """Test predictions of model a: slide, patient, fold, seed, time, event, percentile."""
    ids = [(slide, p, "test", fold, seed, "a", (t, e)) for slide, p, fold, seed, t, e, _ in rows]
    return Predictions.from_rows(TASK.card, ids, [[row[-1], row[-1], *[0.5] * 5] for row in rows])


def with_events(table: Predictions, event: float) -> Predictions:
    targets = table.targets.copy()
    targets[:, 1] = event
    return replace(table, targets=targets)


def with_longer_times(table: Predictions, factor: float) -> Predictions:
    return replace(table, targets=table.targets * [factor, 1])


def with_percentile(table: Predictions, percentile: float) -> Predictions:
    values = table.values.copy()
    values[:, PERCENTILE] = percentile
    return replace(table, values=values)


def members(table: Predictions) -> dict[str, bool]:
    found = risk_groups(table)["a"].patients
    return dict(zip(found.units.tolist(), found.is_high.tolist(), strict=True))


# --- who is in a group ---------------------------------------------------------------------------


def test_every_metric_of_survival_is_reachable_from_evaluation() -> None:
    for name in formulas.__all__:
        assert getattr(survival, name) is getattr(formulas, name)


def test_high_risk_is_above_the_median_of_the_training_patients() -> None:
    table = simulate()
    expected = {}
    for fold in range(3):
        of_fold = table.select(table.fold == fold)
        median = np.median(of_fold.values[of_fold.split == "train", RISK])
        tested = of_fold.select(of_fold.split == "test")
        high = tested.values[:, RISK] > median
        expected |= dict(zip(tested.patient_id.tolist(), high.tolist(), strict=True))
    assert members(table) == expected


def test_no_test_patient_influences_the_cut_of_another() -> None:
    table = simulate()
    everyone = members(table)
    kept = table.select((table.split == "train") | (table.values[:, RISK] > 0.5))
    few = members(kept)
    assert 0 < len(few) < len(everyone)
    assert few.items() <= everyone.items()


def test_rows_of_training_patients_are_in_no_group() -> None:
    table = simulate()
    assert members(table) == members(table.select(table.split == "test"))
    assert len(members(table)) == 60


def test_a_patient_with_several_slides_has_the_group_of_the_mean_risk() -> None:
    """The mean of the slides' percentiles would be on the other side of one half."""
    rows = [(f"t{n}", f"t{n}", "train", 0, 0, "a", (1.0 + n, 1.0)) for n in range(5)]
    risks = [0.0, 1.0, 2.0, 3.0, 4.0]
    rows += [(f"s{n}", "p", "test", 0, 0, "a", (5.0, 1.0)) for n in range(3)]
    risks += [1.9, 1.9, 9.0]
    rows += [("s9", "q", "test", 0, 0, "a", (6.0, 1.0))]
    risks += [1.0]
    shares = [
        float((np.quantile(risks[:5], np.linspace(0, 1, 101)) < risk).mean()) for risk in risks
    ]
    values = [[risk, share, *[0.5] * 5] for risk, share in zip(risks, shares, strict=True)]
    table = Predictions.from_rows(TASK.card, rows, values)
    assert np.mean(shares[5:8]) > 0.5
    assert members(table) == {"p": True, "q": False}
    lower = table.values.copy()
    lower[7, RISK], lower[7, PERCENTILE] = 2.1, 1.0
    found = risk_groups(replace(table, values=lower))["a"].patients
    assert np.mean(lower[5:8, PERCENTILE]) > 0.5 > found.percentile[0]
    assert members(replace(table, values=lower)) == {"p": False, "q": False}


def test_a_fold_without_a_value_is_left_out_of_the_mean() -> None:
    """In fold 1 nobody is observed after the horizon, so it has no AUC there."""
    table = simulate()
    metric = next(name for name in TASK.metrics if name.startswith("auc_at_"))
    horizon = float(metric.removeprefix("auc_at_"))
    targets = table.targets.copy()
    is_short = (table.fold == 1) & (table.split == "test")
    targets[is_short, 0] = targets[is_short, 0].clip(max=0.9 * horizon)
    estimate = summarize(replace(table, targets=targets), metrics=metric, draws=50)["a"][metric]
    assert [bool(np.isnan(value)) for value in estimate.values] == [False, True, False]
    known = [value for value in estimate.values if value == value]
    assert min(known) <= estimate.mean <= max(known)
    assert estimate.low < estimate.mean < estimate.high
    other = replace(table, targets=targets, model=np.full(len(table), "b"))
    (pair,) = compare_models(
        Predictions.concatenate([replace(table, targets=targets), other]), metric=metric, draws=50
    )
    assert (pair.difference, pair.p_permutation) == (0, 1)


def test_before_the_first_test_time_the_brier_score_is_known() -> None:
    """Everyone is alive and observed: the mean square of the predicted risk of dying."""
    targets = np.array([[10.0, 1], [12, 0], [20, 1]])
    task = replace(TASK, horizons=(5,), curve_times=(5, 10, 15, 20, 25))
    values = np.array([[0.0, 0.5, alive, 0.5, 0.4, 0.3, 0.2] for alive in (0.9, 0.8, 1.0)])
    found = task.get_metric("brier_at_5").compute(targets, values)
    assert found == pytest.approx((0.01 + 0.04 + 0) / 3)


def test_a_patient_with_two_slides_counts_once_with_their_mean() -> None:
    slides = [("s1", "p", 0, 0, 5, 1, 0.3), ("s2", "p", 0, 0, 5, 1, 0.8)]
    found = risk_groups(make_table([*slides, ("s3", "q", 0, 0, 9, 1, 0.1)]))["a"]
    assert found.patients.units.tolist() == ["p", "q"]
    assert found.patients.percentile.tolist() == [0.55, 0.1]
    assert (found.low.num_patients, found.high.num_patients) == (1, 1)
    assert found.high.num_events == 1


def test_seeds_are_averaged_and_a_mean_of_one_half_is_low_risk() -> None:
    just_above, just_below = (float(np.float32(n / 101)) for n in (51, 50))
    rows = [("s", "p", 0, 0, 5, 1, just_above), ("s", "p", 0, 1, 5, 1, just_below)]
    assert members(make_table(rows)) == {"p": False}
    assert members(make_table(rows[:1])) == {"p": True}


def test_a_patient_of_repeated_cross_validation_counts_once() -> None:
    table = simulate(folds=3)
    again = replace(table, fold=table.fold + 3)
    both = Predictions.concatenate([table, again])
    once, twice = risk_groups(table)["a"], risk_groups(both)["a"]
    assert once.log_rank == twice.log_rank
    assert once.hazard_ratio == twice.hazard_ratio
    assert len(twice.patients.units) == 60


def test_slides_of_different_follow_up_are_units_of_their_own() -> None:
    table = make_table([("s1", "p", 0, 0, 5, 1, 0.3), ("s2", "p", 0, 0, 7, 0, 0.8)])
    assert members(table) == {"s1": False, "s2": True}
    assert risk_group_table(table, STYLE).header[1] == "slides"


def test_other_tasks_have_no_risk_groups() -> None:
    with pytest.raises(RunError, match="expected survival"):
        risk_groups(predicted(("a",)))


# --- how groups are compared ---------------------------------------------------------------------


def test_groups_are_compared_within_each_fold() -> None:
    table = simulate(("a", "b"), patients=90)
    for model, found in risk_groups(table).items():
        folds = collect_fold_results(table)[model]
        times, events = np.concatenate([fold.targets for fold in folds]).T
        high = np.concatenate([fold.values[0, :, PERCENTILE] > 0.5 for fold in folds])
        number = np.repeat([0, 1, 2], 30)
        direct = formulas.log_rank(times, events, high, number)
        assert found.log_rank.p == pytest.approx(direct.p, rel=1e-9)
        assert found.log_rank.p != formulas.log_rank(times, events, high).p
        ratio = formulas.hazard_ratio(times, events, high, number)
        assert found.hazard_ratio == pytest.approx(ratio, rel=1e-9)
        median = formulas.median_survival(times[high], events[high])
        assert found.high.median == median
        assert found.low.num_patients + found.high.num_patients == 90


def test_a_good_model_separates_and_a_useless_one_does_not() -> None:
    good, useless = (risk_groups(simulate(patients=300, noise=n))["a"] for n in (0.3, 1e6))
    assert good.log_rank.p < 1e-6
    assert good.hazard_ratio.low > 1.5
    assert useless.hazard_ratio.low < 1 < useless.hazard_ratio.high


@pytest.mark.parametrize("percentile", [0.2, 0.9])
def test_with_an_empty_group_nothing_is_compared(percentile: float) -> None:
    found = risk_groups(with_percentile(simulate(), percentile))["a"]
    empty = found.high if percentile < 0.5 else found.low
    assert empty.num_patients == 0
    assert np.isnan([*found.log_rank, *found.hazard_ratio, *empty.median]).all()


def test_without_events_no_median_is_reached() -> None:
    found = risk_groups(with_events(simulate(), 0))["a"]
    assert np.isnan([*found.log_rank, *found.hazard_ratio]).all()
    assert found.low.median == found.high.median == (math.inf,) * 3


# --- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", FORMATS)
def test_a_table_of_risk_groups_has_a_row_per_model_in_every_format(layout: str) -> None:
    table = simulate(("a", "b"))
    text = render_table(risk_group_table(table, STYLE), layout)
    found = risk_groups(table)["b"]
    shown = repr(found.hazard_ratio.ratio) if layout == "csv" else f"{found.hazard_ratio.ratio:.2f}"
    assert shown in text
    assert ("interval" in text) == (layout != "csv")


def test_cells_say_what_is_not_reached_and_what_is_undefined() -> None:
    made = risk_group_table(with_percentile(with_events(simulate(), 0), 0.9), STYLE)
    assert [cell.text for cell in made.rows[0]] == [
        *("a", "0 / 60", "0 / 0", "–", "not reached", "–", "–")
    ]
    assert "Not reached: " in made.caption
    assert "–: a group is empty" in made.caption
    usual = risk_group_table(simulate(patients=300), STYLE).caption
    assert "–: " not in usual


def test_a_table_without_intervals_has_no_brackets() -> None:
    made = risk_group_table(simulate(), TableStyle(spread="none"))
    assert "[" not in render_table(made)
    assert "interval" not in made.caption


def test_an_external_cohort_has_no_folds_in_its_caption() -> None:
    assert "stratified" not in risk_group_table(simulate(folds=1), STYLE).caption
    assert "stratified" in risk_group_table(simulate(), STYLE).caption


def test_numbers_of_any_size_are_formatted() -> None:
    assert format_median(formulas.MedianSurvival(5, 3, math.inf), 0) == "5 [3, not reached]"
    assert format_median(formulas.MedianSurvival(*[math.inf] * 3), 1) == "not reached"
    assert format_median(formulas.MedianSurvival(*[math.nan] * 3), 1) == "–"
    assert format_hazard_ratio(formulas.HazardRatio(350.0, 0.5, math.inf, 0.1)) == (
        "350 [0.50, inf]"
    )


def test_the_risk_of_each_test_patient_is_a_row() -> None:
    table = simulate(("a", "b"), seeds=2, slides=2)
    lines = render_table(risk_by_patient_table(table, STYLE), "csv").splitlines()
    rows = list(csv.DictReader(lines))
    assert list(rows[0]) == [
        *("patient", "model", "fold", "time", "event", "risk", "risk_percentile", "group"),
        *(f"s_{time:g}" for time in TIMES),
    ]
    assert len({(row["patient"], row["model"]) for row in rows}) == len(rows) == 120
    high = members(table)
    for row in rows[:60]:
        assert row["model"] == "a"
        assert (row["group"] == "high") == high[row["patient"]]
        assert (float(row["risk_percentile"]) > 0.5) == high[row["patient"]]


# --- plots ---------------------------------------------------------------------------------------


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def first_test_row(table: Predictions) -> Predictions:
    return table.select(np.flatnonzero(table.split == "test")[:1])


TABLES_TO_DRAW = {
    "one patient": first_test_row(simulate()),
    "one group": with_percentile(simulate(), 0.2),
    "no events": with_events(simulate(), 0),
    "only events": with_events(simulate(), 1),
    "two seeds": simulate(("a", "b"), seeds=2, slides=2),
    "another cohort": simulate(folds=1),
    "tiny folds": simulate(patients=7, folds=5),
    "times far beyond the curve": with_longer_times(simulate(), 1e12),
    "enormous times": with_longer_times(simulate(), 1e300),
    "eight models": simulate(tuple("abcdefgh")),
    "odd names": simulate(("$\\frac{1}{ \\$", "_hidden", "a" * 200, "<b>&amp; two\nlines %s {x}")),
}


@pytest.mark.parametrize("draw", DRAWERS)
@pytest.mark.parametrize(
    "name", mostly_slow(TABLES_TO_DRAW, "one patient", "no events", "enormous times", "odd names")
)
def test_a_plot_is_drawn_without_warnings(name: str, draw: Any) -> None:
    assert render_figure(draw(TABLES_TO_DRAW[name]), "svg")


@pytest.mark.parametrize("draw", [draw_kaplan_meier, draw_survival_calibration])
def test_of_eight_models_the_best_six_have_a_panel(draw: Any) -> None:
    figure = draw(TABLES_TO_DRAW["eight models"])
    assert "The 6 best of 8 models." in texts(figure).replace("\n", " ")
    assert len([axes for axes in figure.axes if axes.get_xlabel()]) == 6


def test_curves_show_the_effect_and_the_patients_at_risk() -> None:
    table = simulate(patients=120)
    shown, found = texts(draw_kaplan_meier(table)), risk_groups(table)["a"]
    assert format_hazard_ratio(found.hazard_ratio) in shown
    assert "log-rank p " in shown
    assert "median risk of the training patients" in shown.replace("\n", " ")
    axes = draw_kaplan_meier(table).axes
    below = next(each for each in axes if each.get_title("left") == "patients at risk")
    counts = {(t.get_position()[0], t.get_position()[1]): int(t.get_text()) for t in below.texts}
    for line, group in enumerate((found.low, found.high)):
        for tick, count in zip((0, 24), formulas.count_at_risk(group.times, [0, 24]), strict=True):
            assert counts[tick, line] == count


@pytest.mark.parametrize(
    ("name", "reason"),
    [("one group", "no patient of high risk"), ("no events", "no events")],
)
def test_curves_say_why_nothing_is_compared(name: str, reason: str) -> None:
    assert reason in texts(draw_kaplan_meier(TABLES_TO_DRAW[name]))


def test_curves_of_a_group_are_those_of_kaplan_and_meier() -> None:
    table = simulate()
    curve = risk_groups(table)["a"].high.curve
    lines = draw_kaplan_meier(table).axes[0].lines
    x, y = next(line.get_data() for line in lines if len(line.get_xdata()) == len(curve.times) + 1)
    np.testing.assert_array_equal(x[1:], curve.times)
    np.testing.assert_array_equal(y[1:], curve.survival)


def test_the_auc_at_a_horizon_is_that_of_the_table() -> None:
    table = simulate(patients=150, seeds=2)
    folds = collect_fold_results(table)["a"]
    mean = average_auc(folds, compute_auc_curves(folds))
    estimates = summarize(table, metrics=["auc_at_12", "auc_at_36"], draws=20)["a"]
    assert mean[0] == pytest.approx(estimates["auc_at_12"].mean, rel=1e-9)
    assert mean[2] == pytest.approx(estimates["auc_at_36"].mean, rel=1e-9)


def test_a_time_that_few_folds_reach_has_no_mean() -> None:
    folds = collect_fold_results(simulate())["a"]
    curves = np.array([[0.6, 0.6, np.nan], [0.6, np.nan, np.nan], [0.6, np.nan, 0.6]])
    assert average_auc(folds, curves)[0] == pytest.approx(0.6)
    assert np.isnan(average_auc(folds, curves)[1:]).all()


def test_calibration_is_drawn_at_the_middle_horizon() -> None:
    table = simulate(patients=100)
    figure = draw_survival_calibration(table)
    assert "predicted survival at 36 months" in texts(figure)
    patients = risk_groups(table)["a"].patients
    expected = formulas.calibrate_at(patients.times, patients.events, patients.survival[:, 2], 36)
    drawn = next(line for line in figure.axes[0].lines if len(line.get_xdata()) == 5)
    np.testing.assert_allclose(drawn.get_xdata(), expected.predicted)
    np.testing.assert_allclose(drawn.get_ydata(), expected.observed)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    last=st.one_of(st.floats(1e-6, 1e6), st.floats(0, exclude_min=True, allow_infinity=False)),
    unit=st.sampled_from(["", "days", "weeks", "months", "years", "moons"]),
)
def test_ticks_are_few_and_within_the_observed_time(last: float, unit: str) -> None:
    ticks = list_ticks(last, unit)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 7
    assert ticks[-1] <= last * (1 + 1e-9)


# --- reports -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_task_wants_in_a_report_exists(kind: type[tasks.Task]) -> None:
    assert {*kind.plots} <= {*PLOTS}
    assert {*kind.tables} <= {*TABLES}


def test_a_report_has_the_risk_groups_and_a_file_of_patients(tmp_path: Path) -> None:
    write_predictions(tmp_path / PREDICTIONS_FILE, simulate(("a", "b"), patients=30))
    found = evaluate(tmp_path, draws=20)
    page = found.write_report(tmp_path / "report").read_text(encoding="utf-8")
    assert "<h2>Risk groups</h2>" in page
    assert "Risk by patient" not in page
    assert page.count('class="broad"') == 2
    files = {file.name for file in (tmp_path / "report").iterdir()}
    assert {f"risk_groups.{suffix}" for suffix in ("csv", "md", "tex")} <= files
    assert "risk_by_patient.csv" in files
    assert "risk_by_patient.md" not in files
    plots = {file.stem for file in (tmp_path / "report/plots").iterdir()}
    assert {"kaplan_meier", "auc_over_time", "survival_calibration"} <= plots


def test_a_plot_that_fails_leaves_no_part_of_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Predictions) -> None:
        raise FloatingPointError

    write_predictions(tmp_path / PREDICTIONS_FILE, simulate(patients=30))
    found = evaluate(tmp_path, draws=20)
    monkeypatch.setitem(PLOTS, "kaplan_meier", PLOTS["kaplan_meier"]._replace(draw=fail))
    with pytest.raises(FloatingPointError):
        found.write_report(tmp_path / "report")
    assert not (tmp_path / "report").exists()
