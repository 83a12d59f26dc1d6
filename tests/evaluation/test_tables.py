"""Tables: what is rounded, what is marked, and what names of others cannot do."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predicted import predicted

from sacmil.evaluation.comparison import PairComparison
from sacmil.evaluation.localization import LOCALIZATION_TITLES, LocalizationSummary
from sacmil.evaluation.summary import MetricEstimate, summarize
from sacmil.evaluation.table_format import FORMATS, TableStyle, format_p_value, render_table
from sacmil.evaluation.tables import (
    comparison_table,
    find_misclassified,
    fold_table,
    has_intervals,
    localization_table,
    make_caption,
    misclassified_table,
    summary_table,
)
from sacmil.metrics.classification import CLASSIFICATION_METRICS, METRICS
from sacmil.results import Predictions

NAN = math.nan


few = settings(deadline=None, max_examples=30, derandomize=True)


def figure(
    mean: float, std: float = 0.01, low: float = 0.8, high: float = 0.9, *, metric: str = "auc"
) -> MetricEstimate:
    known = CLASSIFICATION_METRICS[metric]
    return MetricEstimate((mean,), mean, std, low, high, known.title, known.lower_is_better)


def pair(first: str = "a", second: str = "b", **changed: object) -> PairComparison:
    known = {
        "metric": "auc",
        "difference": -0.0312,
        "low": -0.06,
        "high": 0.002,
        "p_permutation": 0.03,
        "p_t": None,
        "p_delong": None,
        "p_holm": 0.06,
        "patients": 60,
        "title": "AUC",
    }
    return PairComparison(first, second, **known | changed)


@pytest.mark.parametrize(
    ("style", "shown"),
    [
        (TableStyle(), "0.912 ± 0.010 [0.800, 0.900]"),
        (TableStyle(spread="std"), "0.912 ± 0.010"),
        (TableStyle(spread="interval"), "0.912 [0.800, 0.900]"),
        (TableStyle(spread="none"), "0.912"),
        (TableStyle(percent=True), "91.2 ± 1.0 [80.0, 90.0]"),
    ],
)
def test_an_estimate_is_printed_in_the_chosen_style(style: TableStyle, shown: str) -> None:
    assert style.format_estimate(figure(0.9123)) == shown


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ((6.024, 0.4282, 5.1, 7.46), "6.024 ± 0.428 [5.100, 7.460]"),
        ((12345.6, 0.25, 12000.0, 13000.0), "12346 ± 0 [12000, 13000]"),
        ((0.05, 23.4, -0.001, 60.0), "0.05 ± 23.40 [0.00, 60.00]"),
        ((4.5e13, 1.2e9, 4e13, 5e13), "4.500e+13 ± 1200000000 [4.000e+13, 5.000e+13]"),
    ],
)
def test_numbers_with_a_unit_have_the_same_decimals_as_their_deviation(
    numbers: tuple[float, float, float, float], shown: str
) -> None:
    estimate = replace(figure(*numbers), is_share=False)
    assert TableStyle().format_estimate(estimate) == shown


def test_what_is_not_defined_is_a_dash_or_left_out() -> None:
    assert TableStyle().format_estimate(figure(NAN)) == "–"
    assert TableStyle().format_estimate(figure(0.5, std=NAN)) == "0.500 [0.800, 0.900]"
    assert TableStyle().format_estimate(figure(0.5, low=NAN, high=NAN)) == "0.500 ± 0.010"


@few
@given(st.floats(-1e-3, 1e-3), st.sampled_from([TableStyle(), TableStyle(percent=True)]))
def test_nothing_is_printed_as_minus_zero(value: float, style: TableStyle) -> None:
    shown = style.format_number(value)
    assert float(shown) != 0 or not shown.startswith("-")


@pytest.mark.parametrize(
    ("p", "shown"), [(None, "–"), (NAN, "–"), (0.0004, "<0.001"), (0.001, "0.001"), (1.0, "1.000")]
)
def test_small_p_values_are_printed_as_a_bound(p: float | None, shown: str) -> None:
    assert format_p_value(p) == shown


def best(metric: str, *means: float) -> list[bool]:
    figures = {f"m{i}": {metric: figure(mean, metric=metric)} for i, mean in enumerate(means)}
    return [row[1].best for row in summary_table(figures).rows]


def test_the_best_is_marked_whichever_way_the_metric_points() -> None:
    assert best("auc", 0.8, 0.9, 0.7) == [False, True, False]
    assert best("brier", 0.8, 0.9, 0.7) == [False, False, True]


def test_means_that_print_alike_are_best_together() -> None:
    assert best("auc", 0.90001, 0.90002, 0.8) == [True, True, False]


def test_an_undefined_mean_is_never_best() -> None:
    assert best("auc", NAN, 0.4) == [False, True]
    assert best("auc", NAN, NAN) == [False, False]


def test_among_one_model_nobody_is_best() -> None:
    assert best("auc", 0.9) == [False]


def test_the_best_is_bold_in_markdown_and_latex_only() -> None:
    table = summary_table({"a": {"auc": figure(0.9)}, "b": {"auc": figure(0.8)}})
    assert "**0.900 ± 0.010 [0.800, 0.900]**" in render_table(table, "markdown")
    assert r"\textbf{0.900 $\pm$ 0.010 [0.800, 0.900]}" in render_table(table, "latex")
    assert "*" not in render_table(table, "text")


def test_csv_keeps_every_digit() -> None:
    table = summary_table({"a": {"auc": figure(1 / 3, std=NAN)}}, style=TableStyle(percent=True))
    (row,) = csv.DictReader(io.StringIO(render_table(table, "csv")))
    assert (row["model"], row["metric"]) == ("a", "auc")
    assert float(row["mean"]) == 1 / 3
    assert math.isnan(float(row["std"]))


HOSTILE = [
    r"50%_of_$x^2$ & {b} #1 ~ \input{/etc/passwd}",
    "<script>alert(1)</script>",
    "a | b | c",
    "two\nlines\r\nand \x1b[31mred",
    "**bold** `code` _em_ [x](http://y)",
    '"quoted", comma',
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_breaks_out_of_its_cell(name: str) -> None:
    table = summary_table({name: {"auc": figure(0.9)}, "b": {"auc": figure(0.8)}}, caption=name)
    text, markdown, latex = (
        render_table(table, layout) for layout in ("text", "markdown", "latex")
    )
    assert len(text.splitlines()) == 4 + 2 * bool(name)
    assert "\x1b" not in text + markdown + latex
    line = markdown.splitlines()[2]
    assert len(re.findall(r"(?<!\\)\|", line)) == 3
    assert not re.search(r"(?<!\\)<", markdown)
    (row,) = [line for line in latex.splitlines() if r"0.900 $\pm$" in line]
    assert len(re.findall(r"(?<!\\)&", row)) == 1
    assert not re.search(r"(?<!\\)[%#_]", row)
    assert r"\input" not in latex
    first = next(csv.DictReader(io.StringIO(render_table(table, "csv"), newline="")))
    assert first["model"].splitlines() == name.splitlines()


@few
@given(st.text())
def test_dollars_and_braces_in_latex_always_balance(name: str) -> None:
    latex = render_table(summary_table({name: {"auc": figure(0.9)}}, caption=name), "latex")
    bare = re.sub(r"\\[&%$#_{}]", "", latex.replace(r"\\", ""))
    depth = np.cumsum([(c == "{") - (c == "}") for c in bare])
    assert depth.min() >= 0
    assert depth[-1] == 0
    assert bare.count("$") % 2 == 0


def test_an_underscore_within_a_word_needs_no_escape_in_markdown() -> None:
    assert "| sac_mil |" in render_table(summary_table({"sac_mil": {"auc": figure(1)}}), "markdown")


def test_columns_stand_below_one_another_in_any_script() -> None:
    table = summary_table({"模型": {"auc": figure(1)}, "abmil": {"auc": figure(0.5)}})
    lines = render_table(table).splitlines()
    assert lines[2].startswith("模型   1.000")
    assert lines[3].startswith("abmil  0.500")


@pytest.mark.parametrize("layout", FORMATS)
def test_tables_without_lines_can_be_written(layout: str) -> None:
    for table in (summary_table({}), comparison_table([])):
        assert render_table(table, layout) is not None


def test_a_pair_is_listed_with_the_tests_that_apply() -> None:
    table = comparison_table([pair(), pair(p_delong=0.0001)])
    assert table.header == (
        *("first", "second", "AUC: first − second", "p (permutation)", "p (Holm)", "p (DeLong)"),
    )
    shown = [cell.text for cell in table.rows[0]]
    assert shown == ["a", "b", "-0.031 [-0.060, +0.002]", "0.030", "0.060", "–"]
    assert table.rows[1][-1].text == "<0.001"


def test_every_fold_stands_under_its_own_number() -> None:
    predictions = predicted(("a", "b"), patients=24, folds=3)
    kept = predictions.select((predictions.model == "a") | (predictions.fold == 2))
    figures = {
        "a": {"auc": MetricEstimate((0.1, 0.2, 0.3), 0.2, 0.1, 0, 1)},
        "b": {"auc": MetricEstimate((0.9,), 0.9, NAN, 0, 1)},
    }
    table = fold_table(figures, "auc", kept)
    assert table.header == ("model", "fold 0", "fold 1", "fold 2")
    assert [cell.text for cell in table.rows[0]] == ["a", "0.100", "0.200", "0.300"]
    assert [cell.text for cell in table.rows[1]] == ["b", "–", "–", "0.900"]


def localised(auc: float, *, low: float = 0.5, folds: int = 5) -> LocalizationSummary:
    figures = {
        "localisation_auc": figure(auc, NAN, low),
        "localisation_ap": figure(0.4, NAN, low),
    }
    return LocalizationSummary(figures, chance=0.1, patients=7, slides=9, folds=folds)


def test_localisation_has_a_line_per_model_and_the_level_of_chance() -> None:
    table = localization_table({"a": localised(0.7), "b": localised(0.8)})
    assert [cell.text for cell in table.rows[0]] == [
        *("a", "0.700 [0.500, 0.900]", "0.400 [0.500, 0.900]", "0.100", "7", "9")
    ]
    assert [row[1].best for row in table.rows] == [False, True]
    assert [record["chance"] for record in table.records] == [0.5, 0.1, 0.5, 0.1]
    assert table.caption.startswith("Localisation (out of fold): ")
    assert "[95 % interval: patients resampled, 2,000 draws]" in table.caption


def test_localisation_of_one_test_set_without_intervals_mentions_neither() -> None:
    table = localization_table({"a": localised(0.7, low=NAN, folds=1)})
    assert table.caption.startswith("Localisation (on test slides): ")
    assert "interval" not in table.caption


def test_labels_in_one_fold_only_do_not_make_a_cross_validation_one_test_set() -> None:
    found = {"a": localised(0.7, folds=1)}
    table = localization_table(found, folds=5)
    assert table.caption.startswith("Localisation (out of fold): ")
    assert localization_table(found, folds=1).caption.startswith("Localisation (on test slides)")


@pytest.mark.parametrize(
    ("figures", "style", "shown"),
    [
        ([figure(0.9)], TableStyle(), True),
        ([figure(0.9, low=NAN), figure(0.8)], TableStyle(spread="interval"), True),
        ([figure(0.9, low=NAN)], TableStyle(), False),
        ([figure(NAN)], TableStyle(), False),
        ([figure(0.9)], TableStyle(spread="std"), False),
    ],
)
def test_intervals_are_explained_only_where_one_is_printed(
    figures: list[MetricEstimate], style: TableStyle, *, shown: bool
) -> None:
    by_metric = {"a": dict(zip(METRICS, figures, strict=False))}
    assert has_intervals(by_metric, style) is shown
    assert any("[" in style.format_estimate(one) for one in figures) is shown
    caption = make_caption(predicted(patients=6), style=style, with_intervals=shown)
    assert ("interval" in caption) is shown


def test_the_caption_names_unit_folds_seeds_patients_interval_and_data() -> None:
    caption = make_caption(predicted(slides=2, seeds=2), data="my run", level=0.9, draws=1500)
    assert caption == (
        "Unit: the patient (60 patients, 120 slides); 3 folds, 2 seeds; mean ± standard deviation "
        "over folds [90 % interval: patients resampled, 1,500 draws]; data: my run."
    )


def test_the_caption_of_runs_with_different_folds_has_a_range() -> None:
    both = predicted({"a": 1, "b": 1}, seeds=2)
    some = both.select((both.model == "a") | ((both.fold != both.fold.max()) & (both.seed == 0)))
    folds = len(np.unique(both.fold))
    assert f"; {folds - 1} to {folds} folds, 1 to 2 seeds;" in make_caption(some)


def test_the_caption_says_when_slides_are_the_unit() -> None:
    predictions = predicted(patients=6, folds=1)
    predictions.patient_id[:] = "p0"
    caption = make_caption(predictions, style=TableStyle(percent=True, spread="none"))
    assert caption == "Unit: the slide (6 slides of 1 patient); 1 fold, 1 seed; mean; in percent."


def test_the_caption_names_models_that_predict_the_same_for_all() -> None:
    predictions = predicted(["abmil", "sac_mil"], slides=2, seeds=2)
    note = "predicts the same for all slides of a fold, only rounding ranks them"
    assert note not in make_caption(predictions)
    own = predictions.model == "abmil"
    predictions.values[own] = [0.4, 0.6]
    predictions.values[own] += np.linspace(0, 1e-7, own.sum())[:, None] * [1, -1]
    assert f"; abmil {note}." in make_caption(predictions)
    predictions.values[np.flatnonzero(own)[0]] = [0.41, 0.59]
    assert note not in make_caption(predictions)


def test_validation_rows_do_not_count() -> None:
    predictions = predicted(patients=10)
    predictions.split[:] = np.where(np.arange(len(predictions)) % 10 < 5, "test", "val")
    assert "(5 patients, 5 slides)" in make_caption(predictions)


def test_every_metric_has_a_title() -> None:
    table = summary_table(summarize(predicted(("a",)), metrics="all", draws=2))
    titles = [one.title for one in CLASSIFICATION_METRICS.values()]
    assert table.header == ("model", *titles)
    assert titles[:3] == ["Accuracy", "AUC", "F1"]
    located = localization_table({"a": localised(0.7)})
    assert located.header[1:3] == tuple(LOCALIZATION_TITLES.values())


def test_a_figure_without_a_title_stands_under_the_name_of_its_metric() -> None:
    untitled = MetricEstimate((0.5,), 0.5, 0.1, 0.4, 0.6)
    assert summary_table({"a": {"mine": untitled}}).header == ("model", "mine")
    assert comparison_table([pair(metric="mine", title="")]).header[2] == "mine: first − second"


# Who is misclassified.


def made(*rows: tuple[str, str, str, int, float]) -> Predictions:
    """From (slide, patient, model, label, probability of class 1)."""
    keys = [
        (slide, patient, "test", 0, number, model, label)
        for number, (slide, patient, model, label, _) in enumerate(rows)
    ]
    return Predictions.from_rows(("no", "yes"), keys, [[1 - row[-1], row[-1]] for row in rows])


def test_a_misclassification_names_the_wrong_models() -> None:
    found = find_misclassified(
        made(
            ("s1", "p1", "a", 1, 0.9),
            ("s1", "p1", "b", 1, 0.2),
            ("s2", "p2", "a", 0, 0.8),
            ("s2", "p2", "b", 0, 0.7),
            ("s3", "p3", "a", 0, 0.1),
            ("s3", "p3", "b", 0, 0.1),
        )
    )
    assert [(m.name, m.truth, m.predicted, m.num_wrong, m.num_models) for m in found] == [
        ("p2", "no", "yes", 2, 2),
        ("p1", "yes", "no", 1, 2),
    ]
    assert round(found[0].probability, 12) == 0.25


def test_a_patient_is_judged_by_the_mean_over_slides() -> None:
    rows = made(("s1", "p1", "a", 1, 0.1), ("s2", "p1", "a", 1, 0.95))
    rows.seed[:] = 0
    assert find_misclassified(rows) == []


def test_a_model_is_judged_by_the_mean_over_its_seeds() -> None:
    assert find_misclassified(made(("s", "p", "a", 1, 0.1), ("s", "p", "a", 1, 0.95))) == []


def test_where_labels_differ_within_a_patient_slides_are_listed() -> None:
    table = misclassified_table(made(("s1", "p1", "a", 1, 0.1), ("s2", "p1", "a", 0, 0.1)))
    assert table.header[0] == "slide"
    assert [row[0].text for row in table.rows] == ["s1"]
    assert table.caption == "1 slide misclassified by at least one model."


def test_everyone_not_listed_is_classified_rightly() -> None:
    predictions = predicted(("a",), strengths=(1.0,))
    wrong = predictions.probabilities.argmax(1) != predictions.label
    assert {m.name for m in find_misclassified(predictions)} == set(predictions.patient_id[wrong])
    assert 0 < wrong.sum() < len(wrong)
