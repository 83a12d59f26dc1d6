"""A study: its question, tasks, models and rounds, read from a YAML file and checked.

Every model of a round is named in the file, so that a new model of the zoo changes no study.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import Field, ValidationInfo, field_validator

from sacmil.errors import ConfigError, shorten_value, suggest_names
from sacmil.models import Recipe, create_model
from sacmil.settings import Settings
from sacmil.yaml_values import read_yaml

FOLDER = Path(__file__).parent
DEVELOPMENT_SEEDS, DEVELOPMENT_REPEATS = range(10), (1,)
"""Synthetic cohorts and cross-validations that development may look at; others confirm."""
TINY_SLIDES = {"train": 12, "val": 8, "test": 8}
TINY: Mapping[str, Any] = {"epochs": 2, "min_steps": 0}

Role = Literal["tune", "run"]
Kind = TypeVar("Kind", bound=Settings)


class Windows(Settings):
    """Squares cut from whole slides, as bags of their own."""

    side: int = Field(10, ge=1)
    """In tiles."""
    step: int = Field(5, ge=1)
    """Between windows that train; those that validate and test do not overlap."""
    min_instances: int = Field(25, ge=1)


class Task(Settings):
    """What is learned: a synthetic task, or a folder of bags with a table of labels."""

    synthetic: Literal[
        "",
        "cluster",
        "margin",
        "metastasis",
        "subtype",
        "near_or_far",
        "same_or_different",
        "which_side",
    ] = ""
    difficulty: Mapping[str, Any] = {}
    """Settings of the synthetic task; what is not given is the task's default."""
    slides: Mapping[str, int] = {"train": 800, "val": 80, "test": 240}
    instances: tuple[int, int] = (400, 1_200)
    """Fewest and most per slide."""
    lengths: int = Field(4, ge=1)
    """Different lengths of slides, so that a training step can be captured for each."""
    width: int = Field(64, ge=1)
    """Of the features."""
    real_outlines: bool = False
    """Whether lesions have the shapes of real ones."""
    longer: tuple[int, ...] = ()
    """Also test on slides so many times as long."""
    bags: str = ""
    """Folder of bags, below the folder of real data."""
    labels: str = ""
    """Table with slide_id, patient_id and label, below the same folder."""
    target: Mapping[str, Any] = {}
    """Where it is not a class: what ``sacmil.read_cohort`` takes, such as task, time and event."""
    folds: int = Field(10, ge=2)
    validation: float = Field(0.15, ge=0, le=0.9)
    windows: Windows | None = None
    recipe: Mapping[str, Any] = {}
    """What training changes on this task."""
    tuned_on: str = ""
    """The task whose tuning holds for this one."""

    @property
    def is_synthetic(self) -> bool:
        """Whether it is made from a seed."""
        return bool(self.synthetic)


class StudyModel(Settings):
    """One line of a table: a model of the zoo with options and changes of the recipe."""

    model: str = ""
    """Its name in the zoo; the default is the name of the line."""
    options: Mapping[str, Any] = {}
    recipe: Mapping[str, Any] = {}
    order: Literal["", "raster", "random"] = ""
    """An order of instances that replaces the model's own."""
    tasks: tuple[str, ...] = ()
    """The tasks it is trained on; the default is all."""
    tuned: bool = True
    """Whether settings are searched for it where a round tunes."""
    retired: str = ""
    """Why it cannot be trained any longer; its results stay."""


class Tuning(Settings):
    """The same search for every model: by the validation set only, on one cohort or fold."""

    grid: Mapping[str, tuple[float, ...]]
    """Fields of the recipe; every combination is tried."""
    recipe: Mapping[str, Any] = {}
    slides: Mapping[str, int] = {}
    instances: tuple[int, int] | None = None
    """Of the synthetic cohort it is done on; the default is the task's."""
    min_auc: float = Field(0.63, ge=0, le=1)
    """Below this validation AUC nothing was learned, and the recipe's own settings are kept."""

    def list_settings(self) -> list[dict[str, float]]:
        """Every combination."""
        return [
            dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())
        ]


class RoundTask(Settings):
    """What is different on one task of a round; what is not given is the round's."""

    models: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()


class Round(Settings):
    """One run of a study, with its own seeds; a finished one is never run again."""

    id: str
    purpose: Literal["development", "confirmation"]
    status: Literal["planned", "done"] = "planned"
    seeds: tuple[int, ...] = ()
    """Of synthetic cohorts, and of the first weights there."""
    repeats: tuple[int, ...] = ()
    """Of cross-validations of real data."""
    weight_seeds: tuple[int, ...] = ()
    """Several first weights for the same slides; the default is one, the cohort's own."""
    only_folds: tuple[int, ...] = ()
    models: tuple[str, ...]
    tasks: tuple[str, ...] = ()
    """The default is all."""
    by_task: Mapping[str, RoundTask] = {}
    """Tasks with models or seeds of their own."""
    change: Mapping[str, Any] = {}
    """Fields of every synthetic task that this round changes."""
    recipe: Mapping[str, Any] = {}
    """What training changes in this round."""
    tuning: Tuning | None = None
    """Where the round tunes; it replaces the study's."""
    tunes: bool = False
    """Whether settings are searched in this round."""
    tune_only: tuple[str, ...] = ()
    """Models whose settings are searched here for another round, and that are not run."""
    tuned_in: str = ""
    """The round whose chosen settings hold here."""
    rule: str = ""
    """What decides, written down before the round was run."""
    commit: str = ""
    date: str = ""
    device: str = ""
    note: str = ""

    @field_validator("tuning", mode="before")
    @classmethod
    def _make_tuning(cls, value: Any, info: ValidationInfo) -> Any:
        return _build("tuning", Tuning, value) if isinstance(value, Mapping) else value

    @field_validator("by_task", mode="before")
    @classmethod
    def _make_by_task(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: _build(f"by_task: {name}", RoundTask, of) for name, of in value.items()}

    def get_models(self, task: str) -> tuple[str, ...]:
        """Return the models of a task."""
        return (task in self.by_task and self.by_task[task].models) or self.models

    def get_seeds(self, task: str) -> tuple[int, ...]:
        """Return the seeds of a synthetic task."""
        return (task in self.by_task and self.by_task[task].seeds) or self.seeds

    def list_seeds(self) -> set[int]:
        """Return the seeds of all tasks."""
        return {*self.seeds, *(seed for of in self.by_task.values() for seed in of.seeds)}


class Study(Settings):
    """All that a YAML file says."""

    name: str
    question: str
    recipe: Mapping[str, Any]
    """How everything is trained: fields of ``sacmil.models.Recipe``."""
    tasks: Mapping[str, Task]
    models: Mapping[str, StudyModel]
    references: Mapping[str, str]
    """By the beginning of a model's name ("" is any): the model it is compared with."""
    tuning: Tuning | None = None
    rounds: tuple[Round, ...]
    page: Mapping[str, Any] = {}
    """Which round, tasks and models the tables of the page show: see ``report.py``."""

    def get_round(self, round_id: str) -> Round:
        """Return a round by its id."""
        for one in self.rounds:
            if one.id == round_id:
                return one
        hint = suggest_names(round_id, [one.id for one in self.rounds])
        raise ConfigError(f"study {self.name}: there is no round {round_id!r}; {hint}")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One model trained once; the key says whether it has been done."""

    task: str
    model: str
    zoo_model: str
    options: Mapping[str, Any]
    order: str
    recipe: Mapping[str, Any]
    data: Mapping[str, Any]
    """The task's settings, without those of training."""
    fold: int = 0
    """Cohort seed of a synthetic task; 100 * repeat + fold of a cross-validation."""
    seed: int = 0
    role: Role = "run"

    @property
    def key(self) -> str:
        """A name made of everything above."""
        return make_digest(asdict(self))


def make_digest(value: Any) -> str:
    """Return 16 hex digits that are the same for the same JSON."""
    return hashlib.sha256(dump_json(value).encode()).hexdigest()[:16]


def dump_json(value: Any) -> str:
    """Return JSON with sorted keys, without spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def list_studies(folder: Path = FOLDER) -> list[Path]:
    """Return the files of all studies, by name."""
    return sorted(folder.glob("*.yaml"))


def read_study(path: Path) -> Study:
    """Read and check a study."""
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: cannot be read as YAML ({reason})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected keys such as question, tasks, models and rounds")
    try:
        study = _build("study", Study, _build_parts({"name": path.stem, **content}))
        _check_names(study)
        _check_rounds(study)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return study


def _build_parts(content: dict[str, Any]) -> dict[str, Any]:
    """Build the nested settings one by one, so that an error says where it is."""
    parts = dict(content)
    for key, kind in (("tasks", Task), ("models", StudyModel)):
        named = content.get(key) or {}
        if not isinstance(named, dict):
            raise ConfigError(f"{key}: found {shorten_value(named)}; expected names with settings")
        parts[key] = {name: _build(f"{key}: {name}", kind, of) for name, of in named.items()}
    rounds = content.get("rounds") or []
    if not isinstance(rounds, list) or not all(isinstance(one, dict) for one in rounds):
        raise ConfigError(f"rounds: found {shorten_value(rounds)}; expected a list of keys")
    parts["rounds"] = tuple(_build(f"rounds: {one.get('id')}", Round, one) for one in rounds)
    if content.get("tuning"):
        parts["tuning"] = _build("tuning", Tuning, content["tuning"])
    return parts


def _build(where: str, kind: type[Kind], value: Any) -> Kind:
    given = {} if value is None else value
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: found {shorten_value(given)}; expected keys and values")
    known = kind.model_fields
    for key in given:  # before pydantic asks for the key that this one was meant to be
        if key not in known:
            raise ConfigError(f"{where}: there is no setting {key!r}; {suggest_names(key, known)}")
    missing = [key for key, of in known.items() if of.is_required() and key not in given]
    if missing:
        raise ConfigError(f"{where}: expected {' and '.join(missing)} as well")
    try:
        return kind(**given)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _check_names(study: Study) -> None:
    """Every model, task and reference that is named must be there."""
    named = [(f"round {r.id}", "models", n) for r in study.rounds for n in r.models]
    named += [(f"round {r.id}", "tasks", n) for r in study.rounds for n in (*r.tasks, *r.by_task)]
    named += [(f"model {m}", "tasks", n) for m, of in study.models.items() for n in of.tasks]
    named += [("references", "models", name) for name in study.references.values()]
    named += [
        (f"task {name}", "tasks", of.tuned_on) for name, of in study.tasks.items() if of.tuned_on
    ]
    for where, kind, name in named:
        known: Mapping[str, Any] = getattr(study, kind)
        if name not in known:
            raise ConfigError(
                f"{where}: {name!r} is not among the {kind}; {suggest_names(name, known)}"
            )
    ids = [one.id for one in study.rounds]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"rounds: found ids {ids}; expected each once")
    for name, task in study.tasks.items():
        if task.is_synthetic == bool(task.bags):
            raise ConfigError(f"task {name}: expected either synthetic or bags")


def _check_rounds(study: Study) -> None:
    """Development and confirmation never share a cohort, and a recipe must be one."""
    for kind, named in (("tasks", study.tasks), ("models", study.models)):
        for name, of in named.items():
            _build(f"{kind}: {name}: recipe", Recipe, {**study.recipe, **of.recipe})
    for one in study.rounds:
        if one.tuned_in:
            study.get_round(one.tuned_in)
        for name in (*one.tune_only, *(name for of in one.by_task.values() for name in of.models)):
            if name not in one.models:
                hint = suggest_names(name, one.models)
                raise ConfigError(f"round {one.id}: {name!r} is not among its models; {hint}")
        seeds, is_development = one.list_seeds(), one.purpose == "development"
        if is_development and not seeds <= set(DEVELOPMENT_SEEDS):
            raise ConfigError(
                f"round {one.id}: development has seeds 0 to 9, found {sorted(seeds)}"
            )
        if is_development and not set(one.repeats) <= set(DEVELOPMENT_REPEATS):
            raise ConfigError(f"round {one.id}: development has repeat 1, found {one.repeats}")
        if not is_development and seeds & set(DEVELOPMENT_SEEDS):
            raise ConfigError(
                f"round {one.id}: seeds 0 to 9 belong to development, found {sorted(seeds)}"
            )
        if not is_development and set(one.repeats) & set(DEVELOPMENT_REPEATS):
            raise ConfigError(f"round {one.id}: repeat 1 belongs to development")
        _build(f"round {one.id}: change", Task, dict(one.change))
        _build(f"round {one.id}: recipe", Recipe, {**study.recipe, **one.recipe})


def list_jobs(
    study: Study,
    this: Round,
    chosen: Mapping[tuple[str, str], Mapping[str, float] | None],
    *,
    tiny: bool = False,
) -> list[Job]:
    """Return all jobs of a round that are known by now.

    Args:
        study: the study.
        this: one of its rounds.
        chosen: settings of the recipe by task and model; None before tuning has ended.
        tiny: a few small slides and two epochs, to try a study out on a CPU.
    """
    found: dict[str, Job] = {}
    tuning = this.tuning or study.tuning
    for name, task_name in product(this.models, this.tasks or study.tasks):
        model = study.models[name]
        is_meant = name in this.get_models(task_name) and task_name in (model.tasks or study.tasks)
        if model.retired or not is_meant:
            continue
        build = _JobBuilder(study, this, name, task_name, tiny=tiny)
        if (this.tunes or this.tuned_in) and tuning and model.tuned:
            source = study.tasks[task_name].tuned_on or task_name
            settings = chosen.get((source, name))
            if this.tunes:
                for job in _JobBuilder(study, this, name, source, tiny=tiny).tune(tuning):
                    found[job.key] = job
            if settings is None or name in this.tune_only:
                continue
            jobs: Sequence[Job] = list(build.run(settings))
        else:
            jobs = list(build.run({}))
        found |= {job.key: job for job in jobs}
    return sorted(found.values(), key=lambda job: job.role == "run")


class _JobBuilder:
    """The jobs of one model on one task."""

    def __init__(self, study: Study, this: Round, model: str, task: str, *, tiny: bool) -> None:
        self.round, self.model, self.task, self.tiny = this, model, task, tiny
        self.line, known = study.models[model], study.tasks[task]
        self.settings = known.replace(**this.change) if known.is_synthetic else known
        self.recipe = {**study.recipe, **known.recipe, **self.line.recipe, **this.recipe}

    def run(self, chosen: Mapping[str, float]) -> Iterator[Job]:
        """With every seed, or on every fold of every repeat."""
        recipe = {**self.recipe, **chosen}
        if self.settings.is_synthetic:
            for cohort in self.round.get_seeds(self.task):
                for seed in self.round.weight_seeds or (cohort,):
                    yield self._make(self.settings, recipe, fold=cohort, seed=seed)
            return
        folds = self.round.only_folds or range(self.settings.folds)
        for repeat, fold in product(self.round.repeats, list(folds)[: 1 if self.tiny else None]):
            for seed in self.round.weight_seeds or (repeat,):
                yield self._make(self.settings, recipe, fold=100 * repeat + fold, seed=seed)

    def tune(self, tuning: Tuning) -> Iterator[Job]:
        """Every setting, on cohort 0 or the first fold of repeat 1."""
        settings, fold = self.settings, 100
        if settings.is_synthetic:
            instances = tuning.instances or settings.instances
            slides = {**settings.slides, **tuning.slides}
            settings, fold = settings.replace(slides=slides, instances=instances, longer=()), 0
        for tried in tuning.list_settings():
            recipe = {**self.recipe, **tuning.recipe, **tried}
            yield self._make(settings, recipe, fold=fold, seed=fold // 100, role="tune")

    def _make(
        self, task: Task, recipe: Mapping[str, Any], *, fold: int, seed: int, role: Role = "run"
    ) -> Job:
        options = dict(self.line.options)
        zoo_model = self.line.model or self.model
        if self.tiny:
            options |= _get_small_options(zoo_model)
            recipe = {**recipe, **TINY}
            task = task.replace(slides=TINY_SLIDES, instances=(60, 90))
        if recipe.get("monitor", "last") == "last":
            task = task.replace(validation=0.0)
        left_out = {"recipe", "tuned_on"} | ({"target"} if not task.target else set())
        data = task.model_dump(mode="json", exclude=left_out)
        return Job(
            task=self.task,
            model=self.model,
            zoo_model=zoo_model,
            options=options,
            order=self.line.order,
            recipe=recipe,
            data=data,
            fold=fold,
            seed=seed,
            role=role,
        )


def _get_small_options(zoo_model: str) -> dict[str, Any]:
    from studies.classical import BASELINES

    if zoo_model in BASELINES:
        return {}
    return dict(type(create_model(zoo_model, in_dim=8, num_classes=2)).small_options)
