"""The page tells what the lines hold, and leaves the words of people alone."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.accuracy._figures import ceiling, lines_of, mean_ranks, standings, tasks_of
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._lines import Line, Lines, to_line
from benchmarks.accuracy._pages import block, overview, table
from benchmarks.accuracy._ranks import ranks
from benchmarks.accuracy.heatmaps import scores_of
from benchmarks.accuracy.report import from_results
from benchmarks.blocks import renewed

from sacmil.evaluation.metrics import auc

JOB = Job(study="suite", task="margin", variant="sac_mil", model="sac_mil", source={"seed": 0})
UNITS = [f"slide-{number}" for number in range(40)]
LABELS = [number % 2 for number in range(40)]


def line(variant: str, noise: float, *, seed: int = 0, task: str = "margin") -> Line:
    """Answers that are as good as the noise is small."""
    odds = np.array(LABELS) + noise * np.random.default_rng(seed).standard_normal(40)
    job = replace(JOB, variant=variant, task=task, source={"seed": seed}, seed=seed)
    found = {"labels": LABELS, "answers": odds.tolist(), "units": UNITS, "ceiling": 0.9 + seed / 10}
    return to_line(job, {**found, "localisation": float("nan"), "seconds": 36.0})


LINES = [line(v, n, seed=s) for s in (0, 1) for v, n in (("sac_mil", 1.0), ("abmil", 0.2))]


def test_the_better_variant_comes_first_with_a_difference_above_zero() -> None:
    better, reference = standings(LINES, "sac_mil")
    assert (better.variant, reference.variant) == ("abmil", "sac_mil")
    assert better.runs == 2
    assert better.against is not None
    gap = better.figures["auc"].mean - reference.figures["auc"].mean
    assert -better.against.difference == pytest.approx(gap)
    text = table("margin", [better, reference], LINES, "sac_mil")
    assert f"| abmil | {better.figures['auc'].mean:.3f} [" in text
    assert f"{-better.against.difference:+.3f} [+" in text
    assert "oracle 0.950" in text
    assert ceiling(LINES) == pytest.approx(0.95)


def test_answers_stay_apart_however_sure_a_model_is() -> None:
    """Probabilities of 1 - 1e-20 and 1 - 1e-30 round to the same; the order of slides is told."""
    odds = np.random.default_rng(0).permutation(40) * 2.0 + 40.0
    sure = to_line(replace(JOB, variant="sure"), {"labels": LABELS, "answers": odds.tolist()})
    (found,) = standings([sure], "sac_mil")
    assert found.figures["auc"].mean == pytest.approx(auc(LABELS, odds))
    same = to_line(replace(JOB, variant="same"), {"labels": LABELS, "answers": [0.0] * 40})
    (found,) = standings([same], "sac_mil")
    assert found.figures["auc"].mean == 0.5


def test_a_variant_that_lacks_a_fold_is_not_compared() -> None:
    found = standings([*LINES, line("dsmil", 0.1)], "sac_mil")
    assert [one.variant for one in found] == ["abmil", "sac_mil"]


def test_a_job_that_failed_first_and_was_done_later_counts_once() -> None:
    failed = {**LINES[0], "failure": "no memory"}
    assert tasks_of([failed, *LINES, LINES[0]]) == {"margin": LINES}


def test_ranks_are_means_over_tasks() -> None:
    other = [line("sac_mil", 0.1, task="colon"), line("abmil", 5.0, task="colon")]
    by_task = {"margin": standings(LINES, "sac_mil"), "colon": standings(other, "sac_mil")}
    assert mean_ranks(by_task) == {"abmil": 1.5, "sac_mil": 1.5}


def test_a_task_that_few_did_does_not_keep_the_others_from_a_rank() -> None:
    alone = {"colour": standings([line("abmil", 5.0, task="colour")], "abmil")}
    assert mean_ranks({"margin": standings(LINES, "sac_mil"), **alone}) == {
        "abmil": 1.0,
        "sac_mil": 2.0,
    }


def test_ranks_over_studies_are_of_models_that_did_every_task() -> None:
    auc = {
        "margin": {"sac_mil": (0.9, 0.8), "abmil": (0.8, 0.8), "dsmil": (0.7, 0.7)},
        "colon": {"sac_mil": (0.6,), "abmil": (0.6,), "transmil": (0.99,)},
    }
    tasks = {
        task: [
            {**line(model, 1.0, seed=seed, task=task), "auc": str(one)}
            for model, values in by_model.items()
            for seed, one in enumerate(values)
        ]
        for task, by_model in auc.items()
    }
    assert ranks(tasks) == {
        "sac_mil": {"margin": 1.0, "colon": 1.5},
        "abmil": {"margin": 2.0, "colon": 1.5},
    }


def test_seeds_are_told_by_how_far_they_lie_apart(tmp_path: Path) -> None:
    lines = [
        {**line("sac_mil_local", 1.0, seed=seed), "auc": auc, "accuracy": "0.5"}
        for seed, auc in enumerate(("0.6", "0.7", "0.8"))
    ]
    text = block("seeds.confirm", lines, tmp_path, "images")
    assert "| margin | sac_mil_local | 0.700 | 0.100 | 0.600–0.800 | 0.000 | 3 |" in text


def test_how_sure_variants_are_is_told_the_calmest_first(tmp_path: Path) -> None:
    lines = [
        {**line(variant, 1.0, task=task, seed=seed), "log_loss": str(loss + seed / 10)}
        for variant, loss in (("sac_mil_local, standard", 1.0), ("sac_mil_local, 5 epochs", 0.5))
        for task in ("idc", "margin")
        for seed in (0, 1)
    ]
    only = {**line("abmil_gated, standard", 1.0, task="idc"), "log_loss": "0.1"}
    text = block("calmer", [*lines, only], tmp_path, "images")
    calm, sure = "| sac_mil_local, 5 epochs | 0.55 | 0.55 |", "| sac_mil_local, standard | 1.05 |"
    assert text.index(calm) < text.index(sure)
    assert "| abmil_gated, standard | 0.10" not in text, "did one task of two"


def test_a_recipe_is_held_against_the_standard_of_its_own_model(tmp_path: Path) -> None:
    """Against that of the better model every recipe of the worse one would look like a loss."""
    lines = [
        {**line(f"{model}, {recipe}", noise, seed=seed), "model": model, "log_loss": "1"}
        for seed in (0, 1)
        for model, noises in (("sac_mil_local", (0.3, 0.5)), ("abmil_gated", (3.0, 1.5)))
        for recipe, noise in zip(("standard", "5 epochs"), noises, strict=True)
    ]
    text = block("calmer", lines, tmp_path, "images")
    assert text.count("minus that of") == 2
    for model, sign in (("sac_mil_local", "-"), ("abmil_gated", "+")):
        assert f"minus that of {model}, standard;" in text
        (row,) = re.findall(rf"^\| {model}, 5 epochs \| \**0\.\d+ \((.).* \|$", text, re.M)
        assert row == sign


def test_longer_bags_stand_beside_those_of_the_length_of_training(tmp_path: Path) -> None:
    told = json.dumps({"x2": 0.8, "x4": 0.7, "x8": 0.6, "x16": 0.5})
    lines = [
        {**line("position=prope", 1.0, seed=seed), "auc": "0.9", "more": told} for seed in (0, 1)
    ]
    text = block("extrapolation.confirm", lines, tmp_path, "images")
    assert "|  | x1 | x2 | x4 | x8 | x16 |" in text
    assert "| position=prope | 0.900 | 0.800 | 0.700 | 0.600 | 0.500 |" in text
    assert (tmp_path / "lengths.png").stat().st_size > 0


def test_a_confirmatory_run_is_told_when_it_is_finished(tmp_path: Path) -> None:
    fill = from_results(tmp_path, tmp_path / "images")
    Lines(tmp_path / "suite.confirm.csv").append(JOB, LINES[0])
    mark = tmp_path / "suite.confirm.json"
    for words in (None, '{"finished": false}'):
        if words is not None:
            mark.write_text(words)
        assert "not been finished" in fill("suite.confirm")
    mark.write_text('{"finished": true}')
    assert "| sac_mil |" in fill("suite.confirm")


def test_further_seeds_are_told_with_the_first_once_all_of_them_are_done(tmp_path: Path) -> None:
    first, further = "suite_slowest.confirm", "suite_slowest_more.confirm"
    for name, seeds in ((first, (0,)), (further, (1, 2))):
        for seed in seeds:
            one = line("sac_mil_local", 1.0, seed=seed)
            Lines(tmp_path / f"{name}.csv").append(replace(JOB, seed=seed), one)
    (tmp_path / f"{first}.json").write_text('{"finished": true}')
    for finished, runs in ((False, 1), (True, 3)):
        (tmp_path / f"{further}.json").write_text(json.dumps({"finished": finished}))
        assert [one["seed"] for one in lines_of(tmp_path, first)] == ["0", "1", "2"][:runs]


def test_the_newest_preset_is_the_reference_once_it_has_done_all(tmp_path: Path) -> None:
    local = [line("sac_mil_local", 1.0, seed=seed) for seed in (0, 1)]
    twice = [line("sac_mil_twice", 0.5, seed=seed) for seed in (0, 1)]
    rival = [line("abmil", 0.7, task="rgb")]  # a task that none of ours took part in
    for lines, expected in (
        (local, "sac_mil_local"),
        ([*local, twice[0]], "sac_mil_local"),
        ([*local, *twice], "sac_mil_twice"),
        (rival, "sac_mil_local"),
    ):
        text = block("idc", [*lines, *rival], tmp_path, "images")
        assert f"minus that of {expected};" in text


def test_second_rounds_have_ranks_of_their_own(tmp_path: Path) -> None:
    for study, variant in (("suite", "abmil"), ("suite_second", "sac_mil_twice")):
        Lines(tmp_path / f"{study}.csv").append(JOB, {**line(variant, 1.0), "auc": 0.9})
    text = from_results(tmp_path, tmp_path / "images")("ranks")
    first, second = text.split("![Ranks on every task](images/images/ranks.png)")
    assert first.startswith("Ranks over suite (development):\n")  # others have not been run
    assert "| abmil | 1 | 1.00 |" in first
    assert "Ranks over suite_second (development)" in second
    assert "| sac_mil_twice | 1 | 1.00 |" in second


def test_ranks_are_of_the_confirmatory_run_once_it_is_finished(tmp_path: Path) -> None:
    for file, variant in (("idc.csv", "developed"), ("idc.confirm.csv", "confirmed")):
        Lines(tmp_path / file).append(JOB, {**line(variant, 1.0), "auc": 0.9})
    fill = from_results(tmp_path, tmp_path / "images")
    mark = tmp_path / "idc.confirm.json"
    for finished, there in (("false", "developed"), ("true", "confirmed")):
        mark.write_text(f'{{"finished": {finished}}}')
        assert [name for name in ("developed", "confirmed") if name in fill("ranks")] == [there]


def test_only_what_stands_between_the_marks_is_renewed(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "suite.csv")
    for each in LINES:
        variant = each["variant"].replace("sac_mil", "sac_mil_local")
        job = replace(JOB, variant=variant, source={"seed": int(each["seed"])})
        lines.append(job, each)
    page = "Words.\n<!-- begin suite -->\nformer\n<!-- end suite -->\nMore.\n"
    made = renewed(page, from_results(tmp_path, tmp_path / "images"))
    assert made.startswith(
        "Words.\n<!-- begin suite -->\n\nAUC, mean over runs (minus that of sac_mil_local;"
    )
    assert "former" not in made
    assert made.count("| abmil |") == 2  # at a glance, and with intervals
    assert "\nMore.\n" in made
    assert (tmp_path / "images" / "suite.png").stat().st_size > 1000
    assert renewed(made, from_results(tmp_path, tmp_path / "images")) == made


def test_at_a_glance_the_best_rank_comes_first_and_sure_differences_are_bold() -> None:
    equal = [line("dsmil", 1.0, seed=seed) for seed in (0, 1)]
    ranked = {"margin": standings([*LINES, *equal], "sac_mil")}
    text = overview(ranked, "sac_mil", {"margin": 0.95})
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("|")]
    assert rows[2] == ["_oracle_", "0.950"]
    assert [row[0] for row in rows[3:]] == [one.variant for one in ranked["margin"]]
    assert [row[0] for row in rows if "**" in row[1]] == ["abmil"]


def test_a_study_without_results_says_so(tmp_path: Path) -> None:
    page = "<!-- begin idc -->\n<!-- end idc -->"
    assert "_Not run yet._" in renewed(page, from_results(tmp_path, tmp_path / "images"))


def test_heat_comes_from_the_first_repeat_of_the_model_asked_for() -> None:
    def told(model: str, repeat: int, heat: str) -> Line:
        split = {"folds": 4, "repeat": repeat, "fold": 0}
        job = replace(JOB, task="idc", variant=model, split=split)
        return to_line(job, {"more": {"heat": {"8863": heat}}})

    lines = [told("sac_mil", 1, "0 50"), told("sac_mil", 2, "9 9"), told("abmil", 1, "7 7")]
    assert {k: v.tolist() for k, v in scores_of(lines, "sac_mil").items()} == {"8863": [0, 50]}
    assert json.loads(lines[0]["more"])["heat"]


def test_columns_stand_by_number_whatever_was_done_first(tmp_path: Path) -> None:
    tasks = [f"margin, {slides} slides" for slides in (1000, 200, 400)]
    text = block("few", [line("sac_mil", 1.0, task=task) for task in tasks], tmp_path, "images")
    assert "|  | margin, 200 slides | margin, 400 slides | margin, 1000 slides | rank |" in text
