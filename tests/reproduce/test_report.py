"""The paper's means beside ours, in four layouts."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from sacmil.evaluation.summary import MetricEstimate
from sacmil.reproduce._paper import METRICS, TABLES, PaperTable
from sacmil.reproduce._table import NOT_RUN, DatasetResult, write_tables


def figure(mean: float, std: float = 0.02) -> MetricEstimate:
    return MetricEstimate((mean,), mean, std, mean - 0.1, mean + 0.1)


def outcome(*rows: str, mean: float = 0.75) -> DatasetResult:
    return DatasetResult(
        "Ours on a trial.", {row: dict.fromkeys(METRICS, figure(mean)) for row in rows}
    )


def written(out: Path, paper: PaperTable, outcomes: dict[str, DatasetResult]) -> dict[str, str]:
    everywhere = dict.fromkeys(paper.datasets, NOT_RUN)
    paths = write_tables(out, "table", paper, everywhere | outcomes)
    return {path.suffix: path.read_text(encoding="utf-8") for path in paths}


def fields(text: str, row: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(row))
    return [field.strip() for field in line[len(row) :].split("  ") if field.strip()]


def test_the_paper_s_mean_stands_beside_ours(tmp_path) -> None:
    text = written(tmp_path, TABLES["correlations"], {"camelyon16": outcome("Cycle-MLP")})[".txt"]
    ours = "75.0 ± 2.0"
    assert fields(text, "Cycle-MLP") == ["89.5", ours, "92.5", ours, "89.0", ours]


def test_a_row_that_did_not_come_out_is_left_open(tmp_path) -> None:
    files = written(tmp_path, TABLES["correlations"], {"camelyon16": outcome("Cycle-MLP")})
    assert fields(files[".txt"], "SAC-MIL") == ["90.3", "–", "96.1", "–", "89.3", "–"]
    rows = list(csv.DictReader(files[".csv"].splitlines()))
    assert {row["ours_mean"] for row in rows if row["row"] == "SAC-MIL"} == {""}


def test_an_undefined_figure_is_left_open(tmp_path) -> None:
    nothing = figure(math.nan, math.nan)
    figures = {"SAC-MIL": dict.fromkeys(METRICS, nothing)}
    text = written(
        tmp_path, TABLES["correlations"], {"camelyon16": DatasetResult("Ours.", figures)}
    )[".txt"]
    assert fields(text, "SAC-MIL")[1::2] == ["–"] * 3
    assert "nan" not in text


def test_a_dataset_without_data_says_so_and_still_shows_the_paper(tmp_path) -> None:
    text = written(tmp_path, TABLES["positions"], {"camelyon16": outcome("PROPE")})[".txt"]
    lung = text[text.index("TCGA-LUNG\n") : text.index("TCGA-BRCA\n")]
    assert fields(lung, "PROPE") == ["90.4", "–", "95.0", "–", "90.1", "–"]
    assert "Not reproduced" in lung


def test_a_misprint_is_marked_where_it_stands_and_explained_beneath(tmp_path) -> None:
    text = written(tmp_path, TABLES["positions"], {})[".txt"]
    camelyon, rest = text.split("\nTCGA-LUNG\n")
    lung, brca = rest.split("\nTCGA-BRCA\n")
    assert fields(camelyon, "PPEG")[2] == "96.4‡"
    assert "‡ In the paper: above PROPE's 96.1" in camelyon
    assert "†" not in camelyon
    assert "§" not in camelyon
    assert fields(lung, "2D ROPE")[::2] == ["89.8§", "94.4§", "89.7"]
    assert fields(brca, "PROPE")[::2] == ["90.4†", "95.0†", "90.1†"]
    assert "† In the paper: the row of TCGA-LUNG" in " ".join(brca.split())


def test_a_misprint_of_a_whole_row_marks_its_name(tmp_path) -> None:
    text = written(tmp_path, TABLES["table1"], {})[".txt"]
    assert text.count("\nNorma† ") == 3
    assert text.count("\nSAC-MIL ") == 3


def test_text_fits_a_terminal(tmp_path) -> None:
    everything = {
        name: outcome(*TABLES["table1"].rows, mean=1.0) for name in TABLES["table1"].datasets
    }
    text = written(tmp_path, TABLES["table1"], everything)[".txt"]
    assert max(map(len, text.splitlines())) <= 100


def test_csv_holds_every_figure_in_per_cent_with_its_misprint(tmp_path) -> None:
    rows = list(
        csv.DictReader(
            written(tmp_path, TABLES["positions"], {"tcga-brca": outcome("PROPE", mean=0.81)})[
                ".csv"
            ].splitlines()
        )
    )
    assert len(rows) == 8 * 3 * 3
    (one,) = [
        row
        for row in rows
        if (row["dataset"], row["row"], row["metric"]) == ("tcga-brca", "PROPE", "auc")
    ]
    assert (one["paper_mean"], one["paper_std"]) == ("95.0", "1.4")
    assert float(one["ours_mean"]) == pytest.approx(81)
    assert float(one["ours_low"]) == pytest.approx(71)
    assert "row of TCGA-LUNG" in one["misprint"]
    assert one["about"] == "Ours on a trial."


def test_markdown_has_a_table_per_dataset(tmp_path) -> None:
    text = written(tmp_path, TABLES["positions"], {"camelyon16": outcome("PROPE")})[".md"]
    assert text.startswith("# Table III")
    assert text.count("\n## ") == 3
    assert "| PROPE | 90.3 | 75.0 ± 2.0 | 96.1 | 75.0 ± 2.0 | 89.3 | 75.0 ± 2.0 |" in text


def test_latex_has_no_letter_that_plain_latex_lacks(tmp_path) -> None:
    text = written(tmp_path, TABLES["lambda"], {"camelyon16": outcome("λ = 512")})[".tex"]
    assert r"$\lambda$ = 512 & 90.3 & 75.0 $\pm$ 2.0" in text
    assert r"$\lambda$ = 1$\dagger$" in text
    assert not set("λ†‡§¶±–") & set(text)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 3


def test_what_a_user_named_cannot_break_the_page(tmp_path) -> None:
    nasty = DatasetResult("Ours: data: <script>|a_b_|\x1b[31m & 100 %.", {})
    files = written(tmp_path, TABLES["correlations"], {"camelyon16": nasty})
    assert "<script>" not in files[".md"]
    assert "\x1b" not in files[".txt"] + files[".md"] + files[".tex"]
    assert r"\& 100 \%" in files[".tex"]
