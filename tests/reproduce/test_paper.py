"""The paper's figures as we carry them, and that what we call a misprint is one."""

from __future__ import annotations

import re
from types import ModuleType

import pytest

from sacmil.models import create_model
from sacmil.reproduce import correlations, positions, prope_scale, table1, table2
from sacmil.reproduce._paper import DATASETS, METRICS, PaperResult, PaperTable, parse_results

TABLES = [table1, table2, positions, correlations, prope_scale]
BOLD = {"table1": "SAC-MIL", "table2": "SAC-MIL", "positions": "PROPE"} | {
    "correlations": "SAC-MIL",
    "lambda": "λ = 512",
}
"""The row the paper prints in bold, whole, as the highest of its table."""
each_table = pytest.mark.parametrize("table", TABLES, ids=lambda module: module.NAME)


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
    ("table", "count", "mean_sum", "spread_sum"),
    [
        # Summed over the paper's LaTeX source by a script, not over our own copy; the n-th figure
        # counts n times, so that two changed places are seen.
        (table1, 117, 605712.3, 14454.4),
        (table2, 117, 646666.7, 13508.8),
        (positions, 72, 235281.4, 5755.8),
        (correlations, 15, 10896.3, 137.7),
        (prope_scale, 45, 93266.5, 1947.8),
    ],
    ids=lambda value: getattr(value, "NAME", None),
)
def test_every_figure_of_the_source_was_carried_over(
    table: ModuleType, count: int, mean_sum: float, spread_sum: float
) -> None:
    printed = [figure for *_, figure in cells(table.PAPER_TABLE)]
    assert len(printed) == count
    counted = list(enumerate(printed, start=1))
    assert round(sum(n * figure.mean for n, figure in counted), 1) == mean_sum
    assert round(sum(n * figure.std for n, figure in counted), 1) == spread_sum


@each_table
def test_every_row_of_the_paper_has_a_model_of_ours(table: ModuleType) -> None:
    assert list(table.ROWS) == list(table.PAPER_TABLE.results)
    for variant in table.ROWS.values():
        create_model(variant.model, in_dim=64, num_classes=2, **variant.options)


@each_table
def test_no_two_rows_share_a_run(table: ModuleType) -> None:
    names = [variant.name for variant in table.ROWS.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w.=+-]+", name) for name in names)


def test_the_paper_s_own_model_is_the_same_run_in_every_table() -> None:
    assert {table.ROWS[BOLD[table.NAME]].name for table in TABLES} == {"sac_mil"}


@each_table
def test_exactly_what_exceeds_the_bold_row_is_marked_for_it(table: ModuleType) -> None:
    paper: PaperTable = table.PAPER_TABLE
    best = paper.results[BOLD[table.NAME]]
    higher = {
        (row, dataset, metric)
        for row, dataset, metric, printed in cells(paper)
        if printed.mean > best[dataset][metric].mean
    }
    marked = {
        (row, dataset, metric)
        for row, dataset, metric, _ in cells(paper)
        if any(
            "bold" in paper.list_notes()[mark]
            for mark in paper.find_cell_marks(row, dataset, metric)
        )
    }
    repeated = {("IBMIL (DTFD)", "camelyon16", metric) for metric in ("auc", "f1")}
    assert higher == marked - (repeated if table is table2 else set())


@each_table
def test_a_misprint_names_rows_and_figures_that_exist(table: ModuleType) -> None:
    paper: PaperTable = table.PAPER_TABLE
    assert paper.misprints
    for misprint in paper.misprints:
        assert set(misprint.rows) <= set(paper.results)
        assert set(misprint.datasets) <= set(paper.datasets) <= set(DATASETS)
        assert set(misprint.metrics) <= set(METRICS)


def test_five_rows_have_the_same_spreads_over_both_features() -> None:
    same = [
        row
        for row in table1.PAPER_TABLE.results
        if spreads(table1.PAPER_TABLE, row) == spreads(table2.PAPER_TABLE, row)
    ]
    assert (
        tuple(same) == table1.PAPER_TABLE.misprints[0].rows == table2.PAPER_TABLE.misprints[0].rows
    )


def test_the_spreads_of_lambda_are_those_of_methods_over_uni_features() -> None:
    methods = ["AB-MIL", "CLAM-SB", "CLAM-MB", "DTFD-MIL"]
    rows = prope_scale.PAPER_TABLE.misprints[0].rows
    assert [spreads(prope_scale.PAPER_TABLE, row) for row in rows] == [
        spreads(table2.PAPER_TABLE, method) for method in methods
    ]


def test_prope_on_brca_is_the_row_of_lung() -> None:
    lung, brca = (
        means(positions.PAPER_TABLE, "PROPE", name) for name in ("tcga-lung", "tcga-brca")
    )
    assert lung == brca
    assert means(table1.PAPER_TABLE, "SAC-MIL", "tcga-brca") == [85.4, 89.1, 84.9]


def test_rope_on_lung_is_printed_twice() -> None:
    one, two = (positions.PAPER_TABLE.results[row]["tcga-lung"] for row in ("ROPE", "2D ROPE"))
    assert [metric for metric in METRICS if one[metric] == two[metric]] == ["accuracy", "auc"]


def test_ibmil_on_camelyon_repeats_the_other_table() -> None:
    one, two = (t.PAPER_TABLE.results["IBMIL (DTFD)"]["camelyon16"] for t in (table1, table2))
    assert [metric for metric in METRICS if one[metric] == two[metric]] == ["auc", "f1"]


def test_marks_stand_where_the_misprint_is() -> None:
    paper = positions.PAPER_TABLE
    assert paper.find_cell_marks("PPEG", "camelyon16", "auc") == "‡"
    assert (
        paper.find_cell_marks("PPEG", "camelyon16", "f1")
        == paper.find_cell_marks("PPEG", "tcga-lung", "auc")
        == ""
    )
    assert table1.PAPER_TABLE.find_row_marks("Norma") == "†"
    assert table1.PAPER_TABLE.find_row_marks("SAC-MIL") == ""


@pytest.mark.parametrize("text", ["A | 1_2 3_4", "A | 1_2 3_4 5", "A | 1_2 3_4 5_6 7_8"])
def test_a_line_that_lacks_a_figure_is_not_taken(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_results(text)
