"""Tables and pages follow from the predictions, by the product's own statistics."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exhaustive import choose_cases
from studies import report
from studies.pages import HEADINGS, find_problems
from studies.report import compute_rows, fill_page, read_table, render_table, write_table
from studies.results import RESULTS, make_file_name, read_runs, select_complete_models
from studies.study import FOLDER, Study, list_studies, read_study

import sacmil
from sacmil.errors import ConfigError
from sacmil.results import Predictions, write_predictions

DOCS = FOLDER.parent / "docs" / "results"
READ = {path.stem: read_study(path) for path in list_studies()}
STUDIES = {name: study for name, study in READ.items() if study.page}
"""Those with results."""


def test_every_page_is_short_and_has_its_figures_from_the_tables() -> None:
    assert find_problems() == []


def test_every_study_with_a_finished_round_shows_its_results() -> None:
    assert set(STUDIES) == {
        n for n, of in READ.items() if any(r.status == "done" for r in of.rounds)
    }


@pytest.mark.parametrize("name", STUDIES)
def test_the_tables_of_a_page_are_those_of_its_full_table(name: str) -> None:
    study, page = STUDIES[name], (DOCS / f"{name}.md").read_text(encoding="utf-8")
    rows = read_table(DOCS / "tables" / f"{name}.csv")
    for spec in study.page["tables"]:
        assert render_table(study, spec, rows) in page
    assert (DOCS / "figures" / f"{name}.svg").exists()


def test_the_full_table_follows_from_the_stored_predictions() -> None:
    study, task = STUDIES["default-model"], "breast"
    runs = [row for row in read_runs(RESULTS, study.name, "confirmation") if row["task"] == task]
    path = RESULTS / study.name / "confirmation" / f"{task}.csv.gz"
    found = report._compute_task(("confirmation", task, path, dict(study.references), runs))
    table = read_table(DOCS / "tables" / f"{study.name}.csv")
    expected = [row for row in table if row["task"] == task]
    shown = [{name: report._format_cell(row.get(name)) for name in report.COLUMNS} for row in found]
    assert shown == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", choose_cases(sorted(set(STUDIES) - {"ablation"}), step=4))
def test_all_full_tables_follow_from_the_stored_predictions(name: str, tmp_path: Path) -> None:
    study = STUDIES[name]
    last = study.replace(rounds=study.rounds[-1:])
    with ThreadPoolExecutor(1) as pool:
        rows = compute_rows(last, RESULTS, pool)  # type: ignore[arg-type]
    write_table(tmp_path / "table.csv", rows)
    expected = read_table(DOCS / "tables" / f"{name}.csv")
    expected = [row for row in expected if row["round"] == study.rounds[-1].id]
    assert read_table(tmp_path / "table.csv") == expected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A round with two whole models and one that lacks a fold."""
    rows, values = [], []
    random = np.random.default_rng(0)
    for model, folds in (("good", (0, 1)), ("bad", (0, 1)), ("late", (0,))):
        for fold in folds:
            for number in range(20):
                label = number % 2
                right = random.uniform(0.6, 0.9) if model == "good" else random.uniform(0.1, 0.9)
                name = f"{fold}-{number}"
                rows.append((name, name, "test", fold, 0, model, label))
                values.append([1 - right, right] if label else [right, 1 - right])
    path = tmp_path / "results" / "trial" / "r" / "task-one.csv.gz"
    path.parent.mkdir(parents=True)
    write_predictions(path, Predictions.from_rows(("0", "1"), rows, values))
    return tmp_path


def make_study(**page: Any) -> Study:
    return Study(
        name="trial",
        question="Which?",
        recipe={},
        tasks={},
        models={},
        references={"": "good"},
        rounds=({"id": "r", "purpose": "development", "models": ("good", "bad")},),
        page=page,
    )


def test_a_row_is_what_evaluate_and_compare_say(folder: Path) -> None:
    path = folder / "results" / "trial" / "r" / "task-one.csv.gz"
    runs = [
        {"model": model, "auc": "0.5", "further": "", "seconds": "1", "parameters": "2"}
        | {"localization": "", "oracle": "nan", "log_loss": "0.3"}
        for model in ("good", "bad")
    ]
    good, bad = report._compute_task(("r", "task one", path, {"": "good"}, runs))
    whole = folder / "whole.csv"
    write_predictions(whole, select_complete_models(path))
    estimates = sacmil.evaluate(whole, metrics=["auc"]).estimates
    (pair,) = sacmil.compare(whole, against="good").pairs
    assert (good["model"], bad["model"]) == ("good", "bad"), "one without all folds is left out"
    assert good["auc"] == estimates["good"]["auc"].mean
    assert (bad["auc_low"], bad["auc_high"]) == (
        estimates["bad"]["auc"].low,
        estimates["bad"]["auc"].high,
    )
    assert bad["difference"] == pytest.approx(bad["auc"] - good["auc"])
    assert bad["p_holm"] == pair.p_holm
    assert bad["significant"] == "yes"
    assert "difference" not in good
    assert bad["difference_low"] < bad["difference"] < bad["difference_high"] < 0


ROWS = [
    {
        "round": "r",
        "task": task,
        "model": model,
        "auc": auc,
        "auc_low": "0.5000",
        "auc_high": "1.0000",
        "significant": mark,
    }
    for task, model, auc, mark in (
        ("one", "good", "0.9001", ""),
        ("one", "bad", "0.6000", "yes"),
        ("two", "good", "0.8000", ""),
        ("two", "bad", "0.8500", "no"),
    )
]


def test_a_short_table_has_intervals_stars_and_ranks() -> None:
    spec = {"round": "r", "tasks": ["one", "two"], "mean_rank": True}
    assert render_table(make_study(), spec, ROWS).splitlines() == [
        "|model|one|two|mean rank|",
        "|---|---|---|---|",
        "|good|0.900 (0.500–1.000)|0.800 (0.500–1.000)|1.5|",
        "|bad|0.600* (0.500–1.000)|0.850 (0.500–1.000)|1.5|",
    ]


def test_only_the_tables_of_a_page_are_written(tmp_path: Path) -> None:
    study = make_study(tables=[{"round": "r", "tasks": ["one"]}])
    (tmp_path / "tables").mkdir()
    columns = {name: "" for name in report.COLUMNS}
    write_table(tmp_path / "tables" / "trial.csv", [columns | row for row in ROWS])
    page = tmp_path / "trial.md"
    page.write_text("Before.\n<!-- table 1 -->\nold\n<!-- end -->\nAfter.\n", encoding="utf-8")
    fill_page(study, tmp_path)
    written = page.read_text(encoding="utf-8")
    assert written.startswith("Before.\n<!-- table 1 -->\n|model|one|\n")
    assert written.endswith("<!-- end -->\nAfter.\n")
    assert "old" not in written
    assert (tmp_path / "figures" / "trial.svg").read_text().startswith("<?xml")
    first = (tmp_path / "figures" / "trial.svg").read_bytes()
    fill_page(study, tmp_path)
    assert (tmp_path / "figures" / "trial.svg").read_bytes() == first
    page.write_text("<!-- table 2 -->\n<!-- end -->\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="has a table 2; the study has 1"):
        fill_page(study, tmp_path)


GOOD_PAGE = "\n\n".join(f"## {heading}\n\nWords." for heading in HEADINGS)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("trial.md", GOOD_PAGE + " word" * 490, "words; expected at most 500"),
        ("index.md", "word " * 601, "index.md: 601 words; expected at most 600"),
        ("protocol.md", "word " * 801, "801 words; expected at most 800"),
        ("lab-notes.md", "word " * 1501, "1501 words; expected at most 1500"),
        ("trial.md", GOOD_PAGE.replace("## Caveats", "## Doubts"), "headings Question, Answer"),
        ("trial.md", GOOD_PAGE + 3 * "\n\n| a |\n|---|\n", "3 tables; expected at most 2"),
        ("trial.md", GOOD_PAGE + " ![a](b) ![c](d)", "2 figures; expected at most one"),
        ("trial.md", GOOD_PAGE + " An AUC of 0.987.", "0.987 is not in docs/results/tables"),
        ("index.md", "An AUC of 0.987.", "0.987 is not in docs/results/tables"),
    ],
)
def test_a_page_that_breaks_a_rule_is_named(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "trial.yaml").write_text("lr: 0.63\n")
    docs = tmp_path / "docs"
    (docs / "tables").mkdir(parents=True)
    write_table(docs / "tables" / "trial.csv", [{"auc": 0.7654}])
    good = GOOD_PAGE + " From 0.63 to 0.765, or 0.77."
    (docs / "trial.md").write_text(good, encoding="utf-8")
    assert find_problems(docs, tmp_path / "studies") == []
    (docs / name).write_text(text, encoding="utf-8")
    (found,) = find_problems(docs, tmp_path / "studies")
    assert problem in found


def test_a_study_without_a_page_is_named(tmp_path: Path) -> None:
    (tmp_path / "trial.yaml").write_text("rounds: [{id: a, status: planned}]")
    assert find_problems(tmp_path, tmp_path) == []
    (tmp_path / "trial.yaml").write_text("rounds: [{id: a, status: done}]")
    assert find_problems(tmp_path, tmp_path) == ["trial.md: a study without a page"]


def test_file_names_of_tasks_differ() -> None:
    for study in STUDIES.values():
        names = [make_file_name(task) for task in study.tasks]
        assert len(set(names)) == len(names)
