"""The protocol: what development may see, what confirms, and that tuning is the same for all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from benchmarks.accuracy import (
    _confirm,
    _study,
    calmer,
    calmer_labels,
    calmer_longer,
    colon_breast,
    extrapolation,
    few,
    idc,
    inside,
    larger,
    recipes,
    seeds,
    suite,
    suite_second,
    suite_slowest,
    suite_slowest_more,
    suite_slowest_rest,
    suite_slowest_rest_more,
)
from benchmarks.accuracy._darkness import DARKNESS
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._lines import Line, Lines, to_line
from benchmarks.accuracy._models import PRESETS, SLOW, SLOWEST, everyone, model_of
from benchmarks.accuracy._study import Request
from benchmarks.accuracy._tasks import RECIPE, SETTINGS, SIZES
from benchmarks.accuracy._tuning import TRIED, best

from sacmil.models import Recipe, create_model
from sacmil.models._recipe import PAPER, STANDARD
from sacmil.models._registry import update_keys

REAL = (colon_breast, idc, recipes, larger, calmer, calmer_longer, calmer_labels)
SLOW_ROUNDS = (suite_slowest, suite_slowest_rest)
ALL = (inside, suite, suite_second, *SLOW_ROUNDS, *REAL, extrapolation, seeds, few)
TUNED = (suite, suite_second, *SLOW_ROUNDS, colon_breast, idc, few)


def mark_slow(studies: Iterable[ModuleType]) -> list[Any]:
    """Finished studies with hundreds of jobs, which only slow tests go through."""
    slow = pytest.mark.slow
    quick = (idc, extrapolation)
    return [each if each in quick else pytest.param(each, marks=slow) for each in studies]


def request(*lines: Line, confirm: bool = False) -> Request:
    return Request(SIZES["full"], confirm, lines)


@cache
def tuning_done(study: ModuleType) -> tuple[Line, ...]:
    """Lines as if every setting had been tried; the fifth is the best."""
    made = []
    for job in learning(study.jobs(request())):
        auc = 0.9 if job.training["lr"] == TRIED[4]["lr"] else 0.8
        loss = 0.3 if job.training["weight_decay"] == TRIED[4]["weight_decay"] else 0.4
        made.append(to_line(job, {"val_auc": auc, "val_loss": loss}))
    return tuple(made)


def learning(jobs: Iterable[Job]) -> list[Job]:
    """Those that train something."""
    return [job for job in jobs if job.model != DARKNESS]


def looked_at(jobs: list[Job]) -> set[tuple[str, int]]:
    """Synthetic seeds and repeats that jobs are about."""
    return {
        ("repeat", job.split["repeat"]) if job.split else ("seed", job.source["seed"])
        for job in jobs
    }


@pytest.mark.parametrize("study", mark_slow(ALL), ids=lambda study: study.NAME)
def test_development_and_confirmation_share_no_data(study: ModuleType) -> None:
    lines = tuning_done(study) if study in TUNED else ()
    developed = study.jobs(request(*lines))
    confirmed = study.jobs(request(*lines, confirm=True))
    assert looked_at(developed) <= {("repeat", 1), *(("seed", seed) for seed in range(10))}
    assert not looked_at(developed) & looked_at(confirmed)
    assert {job.role for job in confirmed} <= {"run"}


@pytest.mark.parametrize("study", mark_slow(ALL), ids=lambda study: study.NAME)
def test_no_job_is_asked_for_twice_and_every_model_can_be_made(study: ModuleType) -> None:
    lines = tuning_done(study) if study in TUNED else ()
    jobs = study.jobs(request(*lines))
    assert max(Counter(job.key for job in jobs).values()) == 1
    for job in {(job.model, json.dumps(dict(job.options))): job for job in jobs}.values():
        with torch.device("meta"):
            model_of(job, in_dim=8)


@pytest.mark.parametrize("study", mark_slow(TUNED), ids=lambda study: study.NAME)
def test_every_model_gets_eight_settings_before_any_run(study: ModuleType) -> None:
    jobs = learning(study.jobs(request()))
    assert {job.role for job in jobs} == {"tune"}
    tried = Counter((job.task, job.variant) for job in jobs)
    assert set(tried.values()) == {8}
    first = set(everyone(request().size)) - {*SLOWEST, *suite.LATER}
    rounds = {each: set(each.MODELS) for each in (suite_second, *SLOW_ROUNDS)}
    changed = {f"{preset}, start 2" for preset in PRESETS}
    expected = {suite: first, few: {*few.MODELS, *changed}, **rounds}
    assert {model for _, model in tried} == expected.get(study, set(everyone(request().size)))


@pytest.mark.parametrize("study", mark_slow(TUNED), ids=lambda study: study.NAME)
def test_runs_use_the_setting_that_was_best_on_validation(study: ModuleType) -> None:
    lines = tuning_done(study)
    for confirm in (False, True):
        jobs = learning(study.jobs(request(*lines, confirm=confirm)))
        runs = [job for job in jobs if job.role == "run"]
        only_tunes = study in SLOW_ROUNDS and not confirm
        assert bool(runs) != only_tunes
        assert all({**job.training} == {**job.training, **TRIED[4]} for job in runs)


def test_where_nothing_was_learnt_nothing_is_chosen() -> None:
    """The highest of eight AUCs at chance says nothing of its setting."""
    trials = [job for job in idc.jobs(request()) if job.variant == "abmil" and job.role == "tune"]
    aucs = [0.5, 0.62, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    lines = [
        to_line(job, {"val_auc": auc, "val_loss": 0.7})
        for job, auc in zip(trials, aucs, strict=True)
    ]
    assert best(trials, lines) == {key: RECIPE[key] for key in TRIED[0]}


@pytest.mark.parametrize("study", mark_slow(TUNED), ids=lambda study: study.NAME)
def test_nothing_is_confirmed_that_was_not_tuned(study: ModuleType) -> None:
    with pytest.raises(SystemExit, match="has not been tuned"):
        study.jobs(request(confirm=True))


def test_a_setting_that_failed_is_never_chosen_and_no_choice_is_made_early() -> None:
    job = Job(study="s", task="t", variant="v", model="abmil", source={}, training=TRIED[0])
    trials = [replace(job, training=fields) for fields in TRIED]
    lines = [to_line(trials[0], {"failure": "diverged"})]
    lines += [to_line(trial, {"val_auc": 0.7, "val_loss": 0.6}) for trial in trials[1:7]]
    assert best(trials, lines) is None
    lines.append(to_line(trials[7], {"val_auc": 0.7, "val_loss": 0.5}))
    assert best(trials, lines) == dict(TRIED[7])


def test_a_part_of_the_confirmatory_run_does_not_finish_it(tmp_path: Path) -> None:
    made = {"study": "suite", "task": "margin", "source": {}}
    jobs = [Job(**made, variant=name, model=name) for name in ("sac_mil", "abmil")]
    lines = Lines(tmp_path / "suite.confirm.csv")
    for job in jobs:
        lines.append(job, {})
    given = ["--confirm", "--results", str(tmp_path)]
    for only, finished in ((["--only", "abmil"], False), ([], True)):
        _study.main("suite", lambda request: jobs, "", [*given, *only])
        assert json.loads((tmp_path / "suite.confirm.json").read_text())["finished"] == finished


def test_the_confirmatory_run_is_made_once(tmp_path: Path) -> None:
    mark = tmp_path / "inside.confirm.json"
    _confirm.begin_to_confirm(mark)
    _confirm.begin_to_confirm(mark)  # stopped and taken up again
    _confirm.finish_confirming(mark)
    with pytest.raises(SystemExit, match="has been confirmed"):
        _confirm.begin_to_confirm(mark)


def test_the_confirmatory_run_does_not_go_on_with_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "inside.confirm.json"
    _confirm.begin_to_confirm(mark)
    monkeypatch.setattr(_confirm, "code_hash", lambda: "another")
    with pytest.raises(SystemExit, match="begun with other code"):
        _confirm.begin_to_confirm(mark)


def test_variants_change_one_thing_each() -> None:
    names = [variant.name for variant in inside.VARIANTS]
    assert len(set(names)) == len(names)
    made = [(one.model, one.arrangement, _options(one)) for one in inside.VARIANTS]
    assert all(one not in made[:number] for number, one in enumerate(made))
    singles = ("pool", "k", "depth", "position", "correlation", "width", "residual", "mlp", "tail")
    for variant in inside.VARIANTS:
        if variant.factor in singles:
            given = variant.options
            differing = [key for key in given if given[key] != inside.LOCAL.get(key)]
            assert len(differing) == 1, variant.name


def _options(variant: inside.Variant) -> dict[str, Any]:
    return create_model(variant.model, in_dim=8, num_classes=2, **variant.options).options


def test_the_best_rival_is_found_by_the_mean_over_whole_cross_validations() -> None:
    lines = []
    for model, auc, folds in (
        ("dsmil", 0.8, 10),
        ("r2t", 0.9, 10),
        ("dtfd", 1.0, 9),  # not whole
        ("longnet", 1.0, 10),  # never confirmed
        ("transmil", 1.0, 10),  # looked at anyway
    ):
        for fold in range(folds):
            split = {"folds": 10, "repeat": 1, "fold": fold}
            job = Job(study="s", task="colon", variant=model, model=model, source={}, split=split)
            lines.append(to_line(job, {"auc": auc}))
    assert colon_breast.best_rival(lines, "colon") == ["r2t"]


def test_all_but_the_slowest_are_confirmed_on_folds_that_nobody_has_seen() -> None:
    jobs = colon_breast.jobs(request(*tuning_done(colon_breast), confirm=True))
    first = [job for job in jobs if job.task == "colon"]
    assert {job.model for job in first} == set(everyone(request().size)) - set(SLOWEST)
    assert {job.split["repeat"] for job in jobs} == {6, 7, 8, 9}
    assert len(first) == 40 * len({job.model for job in first})


def test_the_second_round_of_idc_has_folds_that_nobody_has_seen() -> None:
    jobs = idc.jobs(request(*tuning_done(idc), confirm=True))
    assert {job.split["repeat"] for job in jobs} == {6, 7, 8, 9}
    assert {"sac_mil_twice", "sac_mil_local", "clam_mb", DARKNESS} <= {job.model for job in jobs}


@pytest.mark.parametrize(("study", "task"), [(idc, "idc")])
def test_a_slow_model_that_was_best_is_confirmed_with_the_others(
    study: ModuleType, task: str
) -> None:
    lines = [*tuning_done(study)]
    for job in study.jobs(request(*lines)):
        if (
            job.task == task
            and job.role == "run"
            and job.model in ("norma", "longnet", "mean_pool")
        ):
            lines.append(to_line(job, {"auc": {"norma": 0.9}.get(job.model, 0.8)}))
    jobs = study.jobs(request(*lines, confirm=True))
    slow = {(job.task, job.model) for job in jobs if job.model in SLOWEST}
    assert slow == {(task, "norma")}


def test_models_that_came_later_are_compared_with_what_the_same_code_made() -> None:
    """The first round had another rule for the epoch: its lines prove nothing beside them."""
    jobs = suite_second.jobs(request(*tuning_done(suite_second), confirm=True))
    assert {*suite.LATER, "sac_mil_local"} < {job.model for job in jobs}
    assert Counter(job.model for job in jobs) == dict.fromkeys(suite_second.MODELS, 15)


def test_to_list_is_not_to_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor is to ask too early: the code that confirms is written down when it does."""
    job = Job(study="suite", task="margin", source={}, variant="abmil", model="abmil")
    given = ["--confirm", "--results", str(tmp_path)]
    _study.main("suite", lambda request: [job], "", [*given, "--list"])
    assert "1 jobs, 0 done" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="has not been tuned"):
        _study.main("idc", idc.jobs, "", given)
    assert not list(tmp_path.iterdir())


def test_quick_models_are_done_before_slow_ones_and_each_is_tuned_first() -> None:
    lines = tuning_done(colon_breast)
    jobs = colon_breast.jobs(request(*lines))
    slow = [job.model in SLOW for job in jobs]
    assert slow == sorted(slow)
    for model in ("dsmil", "mammil"):
        roles = [job.role for job in jobs if job.model == model]
        assert roles == sorted(roles, reverse=True)


ROUNDS = [
    (suite, {0}, {10, 11, 12}),
    (suite_second, {0}, {13, 14, 15}),
    (suite_slowest, set(), {16}),
    (suite_slowest_rest, set(), {17}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("study", "developed", "fresh"), [*ROUNDS, (few, {0, 1, 2}, {18, 19, 20})])
def test_rounds_on_synthetic_slides_are_confirmed_on_seeds_of_their_own(
    study: ModuleType, developed: set[int], fresh: set[int]
) -> None:
    lines = tuning_done(study)
    seeds = [
        {job.seed for job in study.jobs(request(*lines, confirm=confirm)) if job.role == "run"}
        for confirm in (False, True)
    ]
    assert seeds == [developed, fresh]
    assert {job.study for job in study.jobs(request(*lines))} == {study.NAME}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "more", "fresh"),
    [
        (suite_slowest, suite_slowest_more, {24, 25}),
        (suite_slowest_rest, suite_slowest_rest_more, {26, 27}),
    ],
)
def test_a_round_that_goes_on_from_another_takes_its_settings(
    first: ModuleType, more: ModuleType, fresh: set[int]
) -> None:
    lines = tuning_done(first)
    jobs = [study.jobs(request(*lines, confirm=True)) for study in (first, more)]
    assert {job.seed for job in jobs[1]} == fresh
    assert {job.study for job in jobs[1]} == {more.NAME}
    settings = [
        {(job.task, job.variant): (job.model, dict(job.training)) for job in asked}
        for asked in jobs
    ]
    assert settings[0] == settings[1]
    assert not more.jobs(request(*lines))
    with pytest.raises(SystemExit, match="has not been tuned"):
        more.jobs(request(confirm=True))


@pytest.mark.slow
def test_every_model_meets_every_task_of_long_slides_in_one_of_the_rounds() -> None:
    met = {
        (job.model, job.task)
        for study, _, _ in ROUNDS
        for job in study.jobs(request(*tuning_done(study), confirm=True))
    }
    assert met == set(product(everyone(request().size), suite.TASKS))


def test_few_slides_are_seen_more_often() -> None:
    jobs = few.jobs(request(*tuning_done(few), confirm=True))
    changed = {"sac_mil_local, start 2", "sac_mil_twice, start 2"}
    assert {job.variant for job in jobs} == {*few.MODELS, *changed}
    assert {job.variant for job in jobs if job.options.get("start") == 2.0} == changed
    for job in jobs:
        slides = sum(count for part, count, *_ in job.source["pieces"] if part == "train")
        assert job.training["epochs"] * slides == few.STEPS
        assert job.task.endswith(f", {slides} slides")


@cache
def seen_by(study: ModuleType) -> set[tuple[str, int]]:
    """What development and confirmation look at."""
    lines = tuning_done(study) if study in TUNED else ()
    return {
        data
        for confirm in (False, True)
        for data in looked_at(study.jobs(request(*lines, confirm=confirm)))
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deciding", "seeds", "repeats"),
    [
        (larger, (21, 22, 23), (10, 11)),
        (calmer, (28, 29, 30), (12, 13)),
        (calmer_longer, (31, 32, 33), (14, 15)),
    ],
)
def test_defaults_are_decided_on_data_that_nothing_else_has_seen(
    deciding: ModuleType, seeds: Iterable[int], repeats: Iterable[int]
) -> None:
    asked = deciding.jobs(request(confirm=True))
    seen = {data for study in ALL if study is not deciding for data in seen_by(study)}
    expected = {*(("seed", seed) for seed in seeds), *(("repeat", repeat) for repeat in repeats)}
    assert looked_at(asked) == expected
    assert not looked_at(asked) & seen


def test_what_becomes_the_default_is_trained_as_by_somebody_who_types_no_option() -> None:
    asked = larger.jobs(request(confirm=True))
    assert all(Recipe(**update_keys(job.training)) == STANDARD for job in asked)
    by_task = Counter((job.task, job.variant) for job in asked)
    assert len({task for task, _ in by_task}) == 10
    assert {variant for _, variant in by_task} == {
        *(f"{preset}{start}" for preset in PRESETS for start in ("", ", start 2")),
        "abmil_gated",
    }
    assert len(by_task) == 50


def test_recipes_that_could_become_the_default_differ_in_what_they_are_named_after() -> None:
    trained = {job.variant: Recipe(**update_keys(job.training)) for job in calmer.jobs(request())}
    for model in calmer.MODELS:
        assert trained[f"{model}, standard"] == STANDARD
        both = STANDARD.replace(epochs=5, weight_decay=0.1)
        assert trained[f"{model}, 5 epochs, decay 0.1"] == both
    held = trained["sac_mil_local, 5 epochs"]
    assert held.adapt_to_bags(90) == STANDARD.adapt_to_bags(90), "2,000 steps in any case"
    assert held.adapt_to_bags(1300).epochs == 5
    longer = {
        job.variant: Recipe(**update_keys(job.training)) for job in calmer_longer.jobs(request())
    }
    assert longer["abmil_gated, standard"] == STANDARD
    assert longer["sac_mil_local, 5 epochs, 4000 steps"].adapt_to_bags(300).epochs == 14
    labels = {
        job.variant: Recipe(**update_keys(job.training)) for job in calmer_labels.jobs(request())
    }
    assert labels["abmil_gated, standard"] == STANDARD
    assert labels["sac_mil_local, smoothing 0.2"] == STANDARD.replace(label_smoothing=0.2)


@pytest.mark.slow
def test_lesions_of_real_shapes_take_what_was_chosen_for_drawn_ones() -> None:
    jobs = suite.jobs(request(*tuning_done(suite)))
    assert {job.task for job in jobs if job.role == "tune"} == set(SETTINGS)
    shaped = [job for job in jobs if job.task == "metastasis outlines"]
    assert {job.model for job in shaped} == set(everyone(request().size)) - {*SLOWEST, *suite.LATER}
    assert all(job.source["outlines"] for job in shaped)
    assert not any(job.source["outlines"] for job in jobs if job not in shaped)


def test_what_is_compared_is_what_a_user_can_ask_for() -> None:
    asked = {name: Recipe(**update_keys(fields)) for name, fields in recipes.RECIPES.items()}
    assert asked["standard"] == STANDARD
    assert asked["chosen epoch"] == STANDARD.replace(monitor="val_auc", min_steps=0)
    assert asked["last epoch"] == STANDARD.replace(min_steps=0)
    assert asked["paper"] == PAPER


def test_recipes_that_choose_no_epoch_learn_from_the_validation_part() -> None:
    for job in recipes.jobs(request()):
        chooses = job.training["monitor"] != "last"
        assert (job.split.get("validation") == 0.0) != chooses
