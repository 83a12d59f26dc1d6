"""The paper's figures as we carry them, and that what we call a misprint is one."""

from __future__ import annotations

import re

import pytest

from sacmil.models import create_model
from sacmil.reproduce._paper import (
    DATASETS,
    MARKS,
    METRICS,
    TABLES,
    PaperResult,
    PaperTable,
    make_table,
)

BOLD = {"table1": "SAC-MIL", "table2": "SAC-MIL", "positions": "PROPE"} | {
    "correlations": "SAC-MIL",
    "lambda": "λ = 512",
}
"""The row the paper prints in bold, whole, as the highest of its table."""
each_table = pytest.mark.parametrize("name", TABLES)


def cells(paper: PaperTable) -> list[tuple[str, str, str, PaperResult]]:
    return [
        (row, dataset, metric, printed)
        for row, datasets in paper.results.items()
        for dataset, metrics in datasets.items()
        for metric, printed in metrics.items()
    ]


def spreads(paper: PaperTable, row: str) -> list[float]:
    return [printed.std for name, _, _, printed in cells(paper) if name == row]


def means(paper: PaperTable, row: str, dataset: str) -> list[float]:
    return [printed.mean for printed in paper.results[row][dataset].values()]


@pytest.mark.parametrize(
    ("name", "count", "mean_sum", "spread_sum"),
    [
        # Summed over the paper's LaTeX source by a script, not over our own copy; the n-th figure
        # counts n times, so that two changed places are seen.
        ("table1", 117, 605712.3, 14454.4),
        ("table2", 117, 646666.7, 13508.8),
        ("positions", 72, 235281.4, 5755.8),
        ("correlations", 15, 10896.3, 137.7),
        ("lambda", 45, 93266.5, 1947.8),
    ],
)
def test_every_figure_of_the_source_was_carried_over(
    name: str, count: int, mean_sum: float, spread_sum: float
) -> None:
    printed = [figure for *_, figure in cells(TABLES[name])]
    assert len(printed) == count
    counted = list(enumerate(printed, start=1))
    assert round(sum(n * figure.mean for n, figure in counted), 1) == mean_sum
    assert round(sum(n * figure.std for n, figure in counted), 1) == spread_sum


@each_table
def test_every_row_of_the_paper_has_a_model_of_ours(name: str) -> None:
    assert list(TABLES[name].rows) == list(TABLES[name].results)
    for variant in TABLES[name].rows.values():
        create_model(variant.model, in_dim=64, num_classes=2, **variant.options)


@each_table
def test_no_two_rows_share_a_run(name: str) -> None:
    runs = [variant.name for variant in TABLES[name].rows.values()]
    assert len(set(runs)) == len(runs)
    assert all(re.fullmatch(r"[\w.=+-]+", run) for run in runs)


def test_the_paper_s_own_model_is_the_same_run_in_every_table() -> None:
    assert {table.rows[BOLD[name]].name for name, table in TABLES.items()} == {"sac_mil"}


@each_table
def test_exactly_what_exceeds_the_bold_row_is_marked_for_it(name: str) -> None:
    paper = TABLES[name]
    best = paper.results[BOLD[name]]
    higher = {
        (row, dataset, metric)
        for row, dataset, metric, printed in cells(paper)
        if printed.mean > best[dataset][metric].mean
    }
    marked = {
        (row, dataset, metric)
        for row, dataset, metric, printed in cells(paper)
        if any("bold" in paper.notes[mark] for mark in printed.marks)
    }
    repeated = {("IBMIL (DTFD)", "camelyon16", metric) for metric in ("auc", "f1")}
    assert higher == marked - (repeated if name == "table2" else set())


@each_table
def test_every_mark_has_a_note_and_every_note_a_mark(name: str) -> None:
    paper = TABLES[name]
    used = {
        mark
        for row, dataset, metric, _ in cells(paper)
        for mark in paper.find_marks(row, dataset, metric)
    }
    assert used == set(paper.notes) == set(MARKS[: len(used)])
    assert used
    assert set(paper.datasets) <= set(DATASETS)


def test_five_rows_have_the_same_spreads_over_both_features() -> None:
    same = [
        row
        for row in TABLES["table1"].results
        if spreads(TABLES["table1"], row) == spreads(TABLES["table2"], row)
    ]
    for name in ("table1", "table2"):
        assert [row for row, marks in TABLES[name].row_marks.items() if marks] == same


def test_the_spreads_of_lambda_are_those_of_methods_over_uni_features() -> None:
    methods = ["AB-MIL", "CLAM-SB", "CLAM-MB", "DTFD-MIL"]
    rows = [row for row, marks in TABLES["lambda"].row_marks.items() if marks]
    assert [spreads(TABLES["lambda"], row) for row in rows] == [
        spreads(TABLES["table2"], method) for method in methods
    ]


def test_prope_on_brca_is_the_row_of_lung() -> None:
    lung, brca = (means(TABLES["positions"], "PROPE", name) for name in ("tcga-lung", "tcga-brca"))
    assert lung == brca
    assert means(TABLES["table1"], "SAC-MIL", "tcga-brca") == [85.4, 89.1, 84.9]


def test_rope_on_lung_is_printed_twice() -> None:
    one, two = (TABLES["positions"].results[row]["tcga-lung"] for row in ("ROPE", "2D ROPE"))
    assert [metric for metric in METRICS if one[metric][:2] == two[metric][:2]] == [
        "accuracy",
        "auc",
    ]


def test_ibmil_on_camelyon_repeats_the_other_table() -> None:
    one, two = (TABLES[name].results["IBMIL (DTFD)"]["camelyon16"] for name in ("table1", "table2"))
    assert [metric for metric in METRICS if one[metric][:2] == two[metric][:2]] == ["auc", "f1"]


def test_marks_stand_where_the_misprint_is() -> None:
    paper = TABLES["positions"]
    assert paper.find_marks("PPEG", "camelyon16", "auc") == "‡"
    assert paper.find_marks("PPEG", "camelyon16", "f1") == ""
    assert paper.find_marks("PPEG", "tcga-lung", "auc") == ""
    assert TABLES["table1"].row_marks["Norma"] == "†"
    assert TABLES["table1"].row_marks["SAC-MIL"] == ""


@pytest.mark.parametrize("text", ["A | 1_2 3_4", "A | 1_2 3_4 5", "A | 1_2 3_4 5_6 7_8"])
def test_a_line_that_lacks_a_figure_is_not_taken(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        make_table("", "", text, (), {})
