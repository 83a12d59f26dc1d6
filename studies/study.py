"""A study: its question, tasks, models and rounds, read from a YAML file and checked.

Every model of a round is named in the file, so that a new model of the zoo changes no study.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationInfo, field_validator

from sacmil.errors import ConfigError, suggest_names
from sacmil.models import Recipe, create_model
from sacmil.settings import Settings

FOLDER = Path(__file__).parent
DEVELOPMENT_SEEDS, DEVELOPMENT_REPEATS = range(10), (1,)
"""Synthetic cohorts and cross-validations that development may look at; others confirm."""
TINY_SLIDES = {"train": 12, "val": 8, "test": 8}
TINY: Mapping[str, Any] = {"epochs": 2, "min_steps": 0}

Role = Literal["tune", "run"]


class Windows(Settings):
    """Squares cut from whole slides, as bags of their own."""

    side: int = Field(10, ge=1)
    """In tiles."""
    step: int = Field(5, ge=1)
    """Between windows that train; those that validate and test do not overlap."""
    min_instances: int = Field(25, ge=1)


class Task(Settings):
    """What is learnt: a synthetic task, or a folder of bags with a table of labels."""

    synthetic: Literal["cluster", "margin", "metastasis", "subtype"] | None = None
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
        return self.synthetic is not None


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
    retired: str = ""
    """Why it cannot be trained any longer; its results stay."""


class Tuning(Settings):
    """The same search for every model: by the validation set alone, on one cohort or fold."""

    grid: Mapping[str, tuple[float, ...]]
    """Fields of the recipe; every combination is tried."""
    recipe: Mapping[str, Any] = {}
    slides: Mapping[str, int] = {}
    instances: tuple[int, int] | None = None
    """Of the synthetic cohort it is done on; the default is the task's."""
    min_auc: float = Field(0.63, ge=0, le=1)
    """Below this validation AUC nothing was learnt, and the recipe's own settings are kept."""

    def list_settings(self) -> list[dict[str, float]]:
        """Every combination."""
        return [
            dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())
        ]


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
    change: Mapping[str, Any] = {}
    """Fields of every synthetic task that this round changes."""
    tuning: Tuning | None = None
    """Where the round tunes; it replaces the study's."""
    tunes: bool = False
    """Whether settings are searched in this round."""
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
        return Tuning(**value) if isinstance(value, Mapping) else value


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
    extra: Mapping[str, Any] = field(default_factory=dict)

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
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected keys such as question, tasks, models and rounds")
    try:
        study = Study(**_build_parts({"name": path.stem, **content}))
        _check_names(study)
        _check_rounds(study)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return study


def _build_parts(content: dict[str, Any]) -> dict[str, Any]:
    """Build the nested settings one by one, so that an error says where it is."""
    parts = dict(content)
    for key, kind in (("tasks", Task), ("models", StudyModel)):
        parts[key] = {
            name: _build(f"{key}: {name}", kind, value)
            for name, value in (content.get(key) or {}).items()
        }
    rounds = content.get("rounds") or []
    parts["rounds"] = tuple(
        _build(f"rounds: {one.get('id')}", Round, one) if isinstance(one, dict) else one
        for one in rounds
    )
    if content.get("tuning"):
        parts["tuning"] = _build("tuning", Tuning, content["tuning"])
    return parts


def _build(where: str, kind: type[Settings], value: Any) -> Settings:
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{where}: found {value!r}; expected keys and values")
    try:
        return kind(**(value or {}))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _check_names(study: Study) -> None:
    """Every model, task and reference that is named must be there."""
    named = [(f"round {r.id}", "models", n) for r in study.rounds for n in r.models]
    named += [(f"round {r.id}", "tasks", n) for r in study.rounds for n in r.tasks]
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
    for one in study.rounds:
        if one.tuned_in:
            study.get_round(one.tuned_in)
        if one.purpose == "development" and not set(one.seeds) <= set(DEVELOPMENT_SEEDS):
            raise ConfigError(f"round {one.id}: development has seeds 0 to 9, found {one.seeds}")
        if one.purpose == "confirmation" and set(one.seeds) & set(DEVELOPMENT_SEEDS):
            raise ConfigError(
                f"round {one.id}: seeds 0 to 9 belong to development, found {one.seeds}"
            )
        if one.purpose == "confirmation" and set(one.repeats) & set(DEVELOPMENT_REPEATS):
            raise ConfigError(f"round {one.id}: repeat 1 belongs to development")
        for name in one.models:
            Recipe(**{**study.recipe, **study.models[name].recipe})


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
        if model.retired or (model.tasks and task_name not in model.tasks):
            continue
        build = _JobBuilder(study, this, name, task_name, tiny=tiny)
        if (this.tunes or this.tuned_in) and tuning:
            source = study.tasks[task_name].tuned_on or task_name
            settings = chosen.get((source, name))
            if this.tunes:
                for job in _JobBuilder(study, this, name, source, tiny=tiny).tune(tuning):
                    found[job.key] = job
            if settings is None:
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
        self.recipe = {**study.recipe, **known.recipe, **self.line.recipe}

    def run(self, chosen: Mapping[str, float]) -> Iterator[Job]:
        """With every seed, or on every fold of every repeat."""
        recipe = {**self.recipe, **chosen}
        if self.settings.is_synthetic:
            for cohort in self.round.seeds:
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
        data = task.model_dump(mode="json", exclude={"recipe", "tuned_on"})
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
    from studies.train import DARKNESS

    if zoo_model == DARKNESS:
        return {}
    return dict(type(create_model(zoo_model, in_dim=8, num_classes=2)).small_options)
