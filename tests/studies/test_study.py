"""The studies are data: every file reads, its models exist, and nothing but the file changes it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from studies.classical import BASELINES
from studies.study import (
    DEVELOPMENT_REPEATS,
    DEVELOPMENT_SEEDS,
    Round,
    Study,
    StudyModel,
    list_jobs,
    list_studies,
    read_study,
)
from torch import Tensor

from sacmil.errors import ConfigError, OptionError
from sacmil.models import MILModel, Output, _registry, create_model, list_models, register_model

PATHS = {path.stem: path for path in list_studies()}
STUDIES = {name: read_study(path) for name, path in PATHS.items()}
every_study = pytest.mark.parametrize("study", STUDIES.values(), ids=list(STUDIES))

GOOD = """
question: Is one better?
recipe: {epochs: 2, monitor: val_auc}
tuning: {grid: {lr: [0.1, 0.2]}}
tasks:
  cluster: {synthetic: cluster}
  margin: {synthetic: margin, tuned_on: cluster}
  colon: {bags: colon/lite0, labels: colon/labels.csv, folds: 3}
models:
  abmil: {}
  "abmil, last": {model: abmil, recipe: {monitor: last}, tasks: [cluster, colon]}
  transmil: {}
references: {"": abmil}
rounds:
  - {id: first, purpose: development, seeds: [0], repeats: [1], models: [abmil], tunes: true}
  - {id: second, purpose: confirmation, seeds: [10], repeats: [2], models: [abmil, transmil]}
"""


def write_study(folder: Path, text: str) -> Path:
    path = folder / "one.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def change_study(folder: Path, *changes: tuple[str, str]) -> Study:
    text = GOOD
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return read_study(write_study(folder, text))


def build_model(name: str, line: StudyModel) -> None:
    _build_once(line.model or name, tuple(line.options.items()))


@cache
def _build_once(model: str, options: tuple[tuple[str, Any], ...]) -> None:
    """Not on meta, where some models make torch import its compiler, for seconds."""
    create_model(model, in_dim=8, num_classes=2, **dict(options))


# --- committed studies ----------------------------------------------------------------------------


def test_there_are_the_studies_of_the_documentation() -> None:
    assert len(STUDIES) >= 10
    assert all(study.name == name for name, study in STUDIES.items())


@every_study
def test_every_line_is_a_model_of_the_zoo_unless_it_is_retired(study: Study) -> None:
    for name, line in study.models.items():
        if line.retired:
            with pytest.raises(OptionError, match="has no option"):
                build_model(name, line)
        elif (line.model or name) not in BASELINES:
            build_model(name, line)


@every_study
def test_every_model_and_task_is_in_a_round(study: Study) -> None:
    assert set(study.models) == {name for one in study.rounds for name in one.models}
    assert set(study.tasks) == {name for one in study.rounds for name in one.tasks or study.tasks}


@every_study
def test_confirmation_looks_at_nothing_that_development_saw(study: Study) -> None:
    for one in study.rounds:
        is_development = one.purpose == "development"
        assert all((seed in DEVELOPMENT_SEEDS) == is_development for seed in one.list_seeds())
        assert all((number in DEVELOPMENT_REPEATS) == is_development for number in one.repeats)


@every_study
def test_no_cohort_of_a_task_confirms_twice(study: Study) -> None:
    """Rounds that only describe may share cohorts with each other, not with one that chooses."""
    seen: set[tuple[str, int]] = set()
    described: set[tuple[str, int]] = set()
    for one in study.rounds:
        if one.purpose == "confirmation":
            own = {
                (name, number)
                for name in one.tasks or study.tasks
                for number in (
                    one.get_seeds(name) if study.tasks[name].is_synthetic else one.repeats
                )
            }
            assert not own & seen
            if "nothing is chosen by it" in one.rule:
                described |= own
            else:
                assert not own & described
                seen |= own


def list_keys(study: Study, one: Round) -> list[str]:
    settings = {"lr": 0.1, "weight_decay": 0.1}
    chosen = {(task, model): settings for task in study.tasks for model in study.models}
    return [job.key for job in list_jobs(study, one, chosen)]


def test_a_new_model_of_the_zoo_changes_no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["idc", "sample-efficiency", "seed-variance"]  # the others are listed alike
    before = {name: list_keys(STUDIES[name], STUDIES[name].rounds[-1]) for name in names}
    list_models()
    monkeypatch.setattr(_registry, "_MODELS", dict(_registry._MODELS))

    @register_model("newcomer")
    class Newcomer(MILModel):
        def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
            raise NotImplementedError

    assert Newcomer.name in list_models()
    for name in names:
        study = read_study(PATHS[name])
        assert study == STUDIES[name]
        assert list_keys(study, study.rounds[-1]) == before[name] != []


# --- jobs -----------------------------------------------------------------------------------------


def describe_jobs(study: Study, round_id: str, *tuned: str) -> list[tuple[str, str, str, int]]:
    chosen = {("cluster", name): {"lr": 0.2} for name in tuned}
    chosen |= {("colon", name): {"lr": 0.1} for name in tuned}
    jobs = list_jobs(study, study.get_round(round_id), chosen)
    return [(job.role, job.task, job.model, job.fold) for job in jobs]


def test_a_round_tunes_first_and_runs_what_is_tuned(tmp_path: Path) -> None:
    study = change_study(tmp_path)
    tunes = [("tune", task, "abmil", fold) for task, fold in (("cluster", 0), ("colon", 100))]
    assert describe_jobs(study, "first") == [one for one in tunes for _ in range(2)]
    runs = [one for one in describe_jobs(study, "first", "abmil") if one[0] == "run"]
    folds = {"cluster": [0], "margin": [0], "colon": [100, 101, 102]}
    assert runs == [("run", task, "abmil", fold) for task, of in folds.items() for fold in of]


def test_a_task_takes_the_settings_of_the_task_it_is_tuned_on(tmp_path: Path) -> None:
    study = change_study(tmp_path)
    chosen = {("cluster", "abmil"): {"lr": 0.2}, ("colon", "abmil"): {"lr": 0.1}}
    jobs = list_jobs(study, study.rounds[0], chosen)
    rates = {job.task: job.recipe["lr"] for job in jobs if job.role == "run"}
    assert rates == {"cluster": 0.2, "margin": 0.2, "colon": 0.1}


def test_a_model_can_be_tuned_without_being_run_or_run_without_being_tuned(tmp_path: Path) -> None:
    tune_only = change_study(tmp_path, ("tunes: true", "tunes: true, tune_only: [abmil]"))
    assert {one[0] for one in describe_jobs(tune_only, "first", "abmil")} == {"tune"}
    untuned = change_study(tmp_path, ("abmil: {}", "abmil: {tuned: false}"))
    assert {one[0] for one in describe_jobs(untuned, "first")} == {"run"}


def test_a_task_of_a_round_can_have_models_and_seeds_of_its_own(tmp_path: Path) -> None:
    own = "by_task: {margin: {models: [transmil], seeds: [11, 12]}, colon: {models: [abmil]}}"
    study = change_study(tmp_path, ("repeats: [2]", f"repeats: [2], {own}"))
    found = {one[1:] for one in describe_jobs(study, "second")}
    assert found == {
        *(("cluster", "abmil", 10), ("cluster", "transmil", 10)),
        *(("margin", "transmil", 11), ("margin", "transmil", 12)),
        *(("colon", "abmil", fold) for fold in (200, 201, 202)),
    }


def test_recipes_of_study_task_model_and_round_follow_each_other(tmp_path: Path) -> None:
    study = change_study(
        tmp_path,
        ("recipe: {epochs: 2,", "recipe: {epochs: 2, lr: 1e-3, weight_decay: 0.1, gamma: 0.1,"),
        ("cluster: {synthetic: cluster", "cluster: {recipe: {lr: 2e-3}, synthetic: cluster"),
        ("abmil: {}", "abmil: {recipe: {weight_decay: 0.2, lr: 3e-3}}"),
        ("repeats: [2]", "tasks: [cluster], recipe: {gamma: 0.3, weight_decay: 0.3}"),
    )
    job = list_jobs(study, study.rounds[1], {})[0]
    assert job.recipe == {
        **{"epochs": 2, "monitor": "val_auc"},
        **{"lr": 0.003, "weight_decay": 0.3, "gamma": 0.3},
    }


def test_where_the_last_weights_are_kept_nothing_validates(tmp_path: Path) -> None:
    study = change_study(tmp_path, ("[abmil, transmil]", '[abmil, "abmil, last"]'))
    jobs = list_jobs(study, study.rounds[1], {})
    shares = {job.model: job.data["validation"] for job in jobs if job.task == "colon"}
    assert shares == {"abmil": 0.15, "abmil, last": 0.0}
    assert "margin" not in {job.task for job in jobs if job.model == "abmil, last"}


# --- wrong files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("question:", "quetsion:", "study: there is no setting 'quetsion'; did you mean 'question"),
        ("question: Is one better?\n", "", "study: expected question as well"),
        ("synthetic: cluster", "sintetic: cluster", "tasks: cluster: .* did you mean 'synthetic'"),
        ("synthetic: cluster", "synthetic: clutser", "tasks: cluster: .* did you mean 'cluster'"),
        ("cluster: {synthetic: cluster}", "cluster: 5", "tasks: cluster: found 5; expected keys"),
        ("bags: colon/lite0, ", "", "task colon: expected either synthetic or bags"),
        ("tuned_on: cluster", "tuned_on: clutser", "task margin: .* did you mean 'cluster'"),
        ("transmil: {}", "transmil: {option: {}}", "models: transmil: .* did you mean 'options'"),
        ("epochs: 2", "epochz: 2", "recipe: there is no setting 'epochz'; did you mean 'epochs'"),
        ("epochs: 2", "epochs: two", "epochs='two'; expected a whole number"),
        ("{monitor: last}", "{lrr: 1}", "models: abmil, last: recipe: .*'lrr'; did you mean 'lr'"),
        ("[abmil, transmil]", "[abmil, trans]", "round second: 'trans' .* did you mean 'transmil'"),
        ('{"": abmil}', '{"": abml}', "references: 'abml' .* did you mean 'abmil'"),
        ("seeds: [10]", "seeds: [3]", "round second: seeds 0 to 9 belong to development"),
        ("seeds: [0]", "seeds: [10]", "round first: development has seeds 0 to 9"),
        ("repeats: [2]", "repeats: [1]", "round second: repeat 1 belongs to development"),
        ("repeats: [1]", "repeats: [2]", "round first: development has repeat 1"),
        ("seeds: [10]", "seeds: ten", "rounds: second: seeds='ten'; expected a list"),
        ("seeds: [10]", "by_task: {margin: {seeds: [3]}}", "round second: seeds 0 to 9 belong"),
        (
            "seeds: [10]",
            "by_task: {margin: {seed: [3]}}",
            "by_task: margin: .* did you mean 'seeds",
        ),
        ("seeds: [10]", "by_task: {margn: {}}", "round second: 'margn' .* did you mean 'margin'"),
        ("tunes: true", "tune_only: [abml]", "round first: 'abml' is not among its models; did"),
        ("tunes: true", "tuned_in: secnd", "there is no round 'secnd'; did you mean 'second'"),
        ("seeds: [10]", "change: {slide: {}}", "round second: change: .* did you mean 'slides'"),
        ("seeds: [10]", "recipe: {epoch: 3}", "round second: recipe: .* did you mean 'epochs'"),
        ("id: second", "id: first", "rounds: found ids .* expected each once"),
        ("purpose: development, ", "", "rounds: first: expected purpose as well"),
        ("purpose: development", "purpose: develop", "rounds: first: .* did you mean 'development"),
        ("  transmil: {}", "  abmil: {}", "cannot be read as YAML .*the key 'abmil' again"),
        ("transmil: {}", "transmil: {", "cannot be read as YAML .*line"),
    ],
)
def test_a_wrong_file_is_rejected_in_a_sentence_that_says_where(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=f"one.yaml: .*{expected}"):
        change_study(tmp_path, (old, new))


@pytest.mark.parametrize("text", ["", "5", "- question"])
def test_a_file_without_keys_is_rejected(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"one\.yaml: expected keys such as question"):
        read_study(write_study(tmp_path, text))


@pytest.mark.parametrize("key", ["tasks", "models", "rounds"])
def test_parts_of_another_type_are_rejected(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"one.yaml: {key}: found \\['a'\\]; expected"):
        read_study(write_study(tmp_path, f"question: Why?\n{key}: [a]\n"))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        read_study(tmp_path / "none.yaml")
