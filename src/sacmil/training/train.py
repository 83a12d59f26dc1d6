"""Train one model, or cross-validate several: a job for every model, seed and fold of a run."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch

from sacmil.arguments import (
    ProgressCallback,
    ignore_progress,
    is_integer,
    to_integer,
    to_output_folder,
)
from sacmil.card import CARD_FILE
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.split_cohort import FoldChoice, split_cohort
from sacmil.cohorts.splits import Fold, make_training_only_fold
from sacmil.errors import (
    CohortError,
    CohortWarning,
    ConfigError,
    OptionError,
    RunError,
    SacMILError,
    check_type,
    shorten_value,
)
from sacmil.plans import PlanFolder
from sacmil.results import (
    LOCALIZATION_FILE,
    PREDICTIONS_FILE,
    Predictions,
    Run,
    read_localization,
    read_predictions,
    write_localization,
    write_predictions,
)
from sacmil.results.run import check_same_task, natural_sort_key
from sacmil.results.task_card import read_task_card
from sacmil.training.bag_checks import PLAN_FOLDER, check_and_hash_bags
from sacmil.training.config import (
    DEFAULT_MODEL,
    ModelChoice,
    Overrides,
    TrainingConfig,
    resolve_configs,
)
from sacmil.training.fit import find_validation_problem
from sacmil.training.job import TrainingJob, check_models, list_labeled_bags
from sacmil.training.loading import CacheMode
from sacmil.training.run_folder import open_run, write_configs
from sacmil.training.run_jobs import (
    Devices,
    EngineName,
    EpochMonitor,
    FolderMonitor,
    TrainingResources,
    resolve_device,
    resolve_devices,
    run_jobs,
)
from sacmil.training.warm_up import warm_up


def train(
    dataset: Dataset,
    model: str | TrainingConfig | Mapping[str, Any] | None = None,
    *,
    out: str | Path,
    folds: FoldChoice | None = None,
    fold: int | None = None,
    every_slide: bool = False,
    seed: int | None = None,
    recipe: str | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    options: Overrides = (),
    device: str | torch.device = "auto",
    threads: int | None = None,
    cache: CacheMode = "auto",
    on_progress: ProgressCallback = ignore_progress,
) -> Run:
    """Train one model on one fold, or on every slide: cross-validation with a single job.

    An interrupted run is resumed; a finished one is returned at once.

    Args:
        dataset: the slides with their labels and bags.
        model: a name or a configuration. None takes that of ``config``, or sac_mil_near_far.
        out: the run folder, which becomes a model folder.
        folds: number of folds to make, or the folds, or a file or folder of splits; 5 if not given.
        fold: number of the fold to test on; 0 if not given.
        every_slide: train on all slides, without validation and test.
        seed: of weights and order; 0 if neither given here nor in ``config``.
        recipe: standard, paper, official, or another recipe of the model.
        config: a YAML file, or its values.
        options: training settings and model options to change, such as ``{"lr": 2e-4}``.
        device: auto, cpu, cuda:0, …
        threads: of torch on the CPU; None leaves torch's setting.
        cache: where to keep bags between epochs: auto, none, memory or gpu.
        on_progress: called with the number of bags checked, then with every epoch.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from sacmil.synthetic.bags import make_synthetic_cohort, write_synthetic_cohort
        >>> synthetic = make_synthetic_cohort("cluster", 8, seed=0, instances=(20, 30))
        >>> with TemporaryDirectory() as folder:
        ...     dataset = Dataset(write_synthetic_cohort(synthetic, folder), f"{folder}/bags")
        ...     run = train(dataset, "abmil", folds=2, out=f"{folder}/run", options={"epochs": 1})
        ...     run.models, int((run.predictions.split == "test").sum())
        (('abmil',), 4)
    """
    _check_dataset(dataset)
    folder = to_output_folder(out)
    chosen = _resolve_config(model, seed=seed, config=config, recipe=recipe, options=options)
    made, number = _choose_fold(dataset, folds, fold, every_slide=every_slide)
    if every_slide:
        chosen = _keep_last_epoch(chosen)
    plan = RunPlan(folder, dataset, made, {chosen.model: chosen}, [chosen.seed], number)
    resources = TrainingResources((resolve_device(device),), threads=threads, cache=cache)
    with open_jobs(plan, resources, on_progress) as (_, pending):
        for failed in run_jobs(pending, resources, EpochMonitor(on_progress)):
            assert failed.error is not None  # the job ran in this process
            raise failed.error
    return Run(folder)


def cross_validate(
    dataset: Dataset,
    models: ModelChoice | None = None,
    *,
    out: str | Path,
    folds: FoldChoice = 5,
    seeds: int | Iterable[int] = 1,
    recipe: str | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    options: Overrides = (),
    devices: Devices = "auto",
    per_gpu: int | Literal["auto"] = 1,
    threads: int | None = None,
    cache: CacheMode = "auto",
    engine: EngineName = "local",
    address: str | None = None,
    on_progress: ProgressCallback = ignore_progress,
) -> Run:
    """Train and test every model on every fold with every seed; return the run and its failures.

    Jobs finished in ``out`` are skipped; interrupted jobs are resumed.

    Args:
        dataset: the slides with their labels and bags.
        models: a name, several, or configurations by name; None takes those of ``config``, or
            sac_mil_near_far.
        out: the run folder.
        folds: number of folds to make, or the folds, or a file or folder of splits.
        seeds: number of seeds, counted from the configuration's seed, or the seeds.
        recipe: standard, paper, official, or another recipe of the models.
        config: a YAML file, or its values: one configuration for all models, or one for each.
        options: training settings and model options to change, such as ``{"lr": 2e-4}``.
        devices: one per job at a time: ``["cuda:0", "cuda:1"]``; auto is all GPUs, or the CPU.
        per_gpu: jobs at once on each GPU; auto adds one as long as all together get faster.
        threads: of torch for each job on a CPU; None divides the cores evenly.
        cache: where to keep bags between epochs: auto, none, memory or gpu.
        engine: run jobs on this machine (local) or on Ray (ray).
        address: of the Ray cluster; None uses a running one, or starts one.
        on_progress: called with the number of bags checked, then of epochs done.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from sacmil.synthetic.bags import make_synthetic_cohort, write_synthetic_cohort
        >>> synthetic = make_synthetic_cohort("cluster", 8, seed=0, instances=(20, 30))
        >>> with TemporaryDirectory() as folder:
        ...     data = Dataset(write_synthetic_cohort(synthetic, folder), f"{folder}/bags")
        ...     cross_validate(data, folds=2, out=f"{folder}/run", options={"epochs": 1}).models
        ('sac_mil_near_far',)
    """
    _check_dataset(dataset)
    folder = to_output_folder(out)
    configs = resolve_configs(models, config=config, recipe=recipe, options=options)
    listed = _make_seeds(configs, seeds)
    workers = resolve_devices(devices, per_gpu, engine)
    is_shared = per_gpu == "auto" and workers[0].startswith("cuda")
    resources = TrainingResources(workers, is_shared, threads, cache, engine, address)
    plan = RunPlan(folder, dataset, split_cohort(dataset, folds).folds, configs, listed)
    return _run_plan(plan, resources, on_progress)


def _run_plan(plan: RunPlan, resources: TrainingResources, on_progress: ProgressCallback) -> Run:
    with open_jobs(plan, resources, on_progress) as (jobs, pending):
        write_configs(plan.out, plan.configs)
        failed = run_jobs(pending, resources, FolderMonitor(jobs, pending, on_progress))
        _join_predictions(plan.out, jobs)
    return Run(plan.out, {found.name: found.message for found in failed})


@dataclass(frozen=True)
class RunPlan:
    """What a run trains."""

    out: Path
    dataset: Dataset
    folds: Sequence[Fold]
    configs: Mapping[str, TrainingConfig]
    """By their names in tables and folders."""
    seeds: Sequence[int]
    """Each replaces the seed of every configuration."""
    fold: int | None = None
    """The only fold to train, in the run folder itself; None trains all, each in its folder."""

    @property
    def fold_numbers(self) -> Sequence[int]:
        """Numbers of the folds to train."""
        return range(len(self.folds)) if self.fold is None else (self.fold,)

    @property
    def is_finished(self) -> bool:
        """Whether every job has its model."""
        jobs = product(self.configs, self.seeds, self.fold_numbers)
        return all((self.find_folder(*job) / CARD_FILE).exists() for job in jobs)

    def find_folder(self, name: str, seed: int, number: int) -> Path:
        """Return the folder of a job."""
        in_crossval = self.out / name / f"seed_{seed}" / f"fold_{number}"
        return in_crossval if self.fold is None else self.out


@contextmanager
def open_jobs(
    plan: RunPlan, resources: TrainingResources, on_progress: ProgressCallback
) -> Iterator[tuple[list[TrainingJob], list[TrainingJob]]]:
    """Check models and bags, open the run folder, and yield its jobs and those not finished.

    Args:
        plan: what to train.
        resources: what to train on.
        on_progress: called with the number of bags checked.
    """
    _check_names(plan.configs)
    planners = check_models(plan.configs.values(), plan.dataset)
    _check_training_sets(plan)
    _check_validation_sets(plan)
    command = "crossval" if plan.fold is None else "train"
    with open_run(plan.out, plan.dataset.cohort, plan.folds, command, plan.seeds):
        trains_here = resources.is_in_process and not plan.is_finished
        with warm_up(resources.devices[0]) if trains_here else nullcontext():
            hashes = check_and_hash_bags(plan.out, plan.dataset.bags, on_progress, planners)
        jobs = list(make_jobs(replace(plan, dataset=plan.dataset.with_hashes(hashes))))
        pending = [job for job in jobs if not job.is_finished()]  # raises on a different job
        _check_task_of_run(plan)
        yield jobs, pending
        shutil.rmtree(plan.out / PLAN_FOLDER, ignore_errors=True)


def _check_task_of_run(plan: RunPlan) -> None:
    """Reject a model whose predictions could not be joined with those in the run folder."""
    known = read_task_card(plan.out)
    if known is None:
        return
    try:
        check_same_task([known, plan.dataset.cohort.task.card])
    except RunError as error:
        raise RunError(f"{plan.out}: {error}; to keep both, choose another `out`") from error


def make_jobs(plan: RunPlan) -> Iterator[TrainingJob]:
    """Yield jobs fold by fold, so that every model has first results early.

    Args:
        plan: with the hashes of its dataset.
    """
    for seed in plan.seeds:
        for number in plan.fold_numbers:
            train, val, test = (list_labeled_bags(plan.dataset, s) for s in plan.folds[number])
            for name, config in plan.configs.items():
                yield TrainingJob(
                    folder=plan.find_folder(name, seed, number),
                    name=name,
                    config=config.replace(seed=seed),
                    task=plan.dataset.cohort.task,
                    fold=number,
                    train=train,
                    val=val,
                    test=test,
                    plans=PlanFolder(plan.out / PLAN_FOLDER),
                )


def _check_training_sets(plan: RunPlan) -> None:
    """Reject training sets that the task cannot learn from, before any model is trained."""
    cohort = plan.dataset.cohort
    monitors = {config.to_recipe().monitor for config in plan.configs.values()}
    problems = []
    for number in plan.fold_numbers:
        fold = plan.folds[number]
        sets = [fold.train + (fold.val if one == "last" else ()) for one in sorted(monitors)]
        targets = [cohort.restrict_to(slide_ids).learned_targets for slide_ids in sets]
        found = [text for one in targets for text in cohort.task.find_fitting_problems(one)]
        problems += [f"fold {number}: {text}" for text in dict.fromkeys(found)]
    if problems:
        raise CohortError("splits", problems)


def _check_validation_sets(plan: RunPlan) -> None:
    """Reject validation sets that cannot choose an epoch, before any model is trained."""
    cohort = plan.dataset.cohort
    recipes = [config.to_recipe() for config in plan.configs.values()]
    problems = []
    for number in plan.fold_numbers:
        targets = cohort.restrict_to(plan.folds[number].val).targets
        found = [find_validation_problem(one, cohort.task, targets) for one in recipes]
        problems += [f"fold {number}: {text}" for text in dict.fromkeys(filter(None, found))]
    if problems:
        raise CohortError("splits", problems)


def _check_dataset(dataset: Dataset) -> None:
    """Reject what is no dataset, such as a cohort without bags."""
    expected = "a Dataset: Dataset(cohort, bags), with the cohort of read_cohort('table.csv')"
    check_type("dataset", dataset, Dataset, expected)


def _resolve_config(
    model: str | TrainingConfig | Mapping[str, Any] | None, *, seed: int | None, **arguments: Any
) -> TrainingConfig:
    models: Any = model
    if isinstance(model, TrainingConfig):
        models = {model.model: model}
    elif isinstance(model, Mapping):
        models = {str(model.get("model", DEFAULT_MODEL)): model}
    configs = resolve_configs(models, argument="model", **arguments)
    if len(configs) > 1:
        raise ConfigError(
            f"`config` has the models {', '.join(configs)}; name the one to train by `model`"
        )
    (chosen,) = configs.values()
    return chosen if seed is None else chosen.replace(seed=to_integer("seed", seed, 0))


def _choose_fold(
    dataset: Dataset, folds: FoldChoice | None, fold: int | None, *, every_slide: bool
) -> tuple[Sequence[Fold], int]:
    """Return the folds and the number of the one to train."""
    if every_slide:
        for name, value in (("fold", fold), ("folds", folds)):
            if value is not None:
                raise ConfigError(f"`{name}` and `every_slide` exclude each other; leave one out")
        return [make_training_only_fold(dataset.cohort)], 0
    made = split_cohort(dataset, 5 if folds is None else folds).folds
    number = 0 if fold is None else to_integer("fold", fold)
    if not 0 <= number < len(made):
        raise ConfigError(f"`fold` is {number}; there are folds 0 to {len(made) - 1}")
    return made, number


def _keep_last_epoch(config: TrainingConfig) -> TrainingConfig:
    """Return the configuration with monitor=last, for a fold without a validation set."""
    if config.to_recipe().monitor == "last":
        return config
    training = {**config.training, "monitor": "last", "patience": None}
    changed = config.replace(training=training)
    warnings.warn(
        f"monitor={config.to_recipe().monitor} of the recipe {config.recipe} chooses an epoch on a "
        "validation set, and training on every slide has none. The last of "
        f"{changed.to_recipe().epochs} epochs is kept; set epochs to the number that "
        "cross-validation found best",
        CohortWarning,
        stacklevel=3,
    )
    return changed


def _check_names(configs: Mapping[str, TrainingConfig]) -> None:
    for name in configs:
        if not re.fullmatch(r"[\w=+][\w.=+-]*", name):
            raise RunError(
                f"{name!r} is not a portable folder name; expected letters, digits and _ . = + -"
            )


def _make_seeds(configs: Mapping[str, TrainingConfig], seeds: int | Iterable[int]) -> list[int]:
    """Return the given seeds, or as many, beginning with the seed of all configurations."""
    if isinstance(seeds, Iterable):
        given = list(seeds)
        listed = [int(seed) for seed in given if is_integer(seed) and seed >= 0]
        if listed and len(set(listed)) == len(given):
            return listed
        raise OptionError(
            f"`seeds` is {shorten_value(seeds)}; expected how many, or different whole numbers "
            "from 0 up"
        )
    count = to_integer("seeds", seeds, 1)
    first, *others = {config.seed for config in configs.values()}
    if others:
        by_model = ", ".join(f"{name} {config.seed}" for name, config in configs.items())
        raise ConfigError(
            f"models have different seeds ({by_model}); give seed=N in `options`, for all"
        )
    return list(range(first, first + count))


def _join_predictions(out: Path, jobs: Sequence[TrainingJob]) -> None:
    """Write the predictions of all finished jobs, of models trained here before too."""
    folders = {job.folder for job in jobs if (job.folder / CARD_FILE).is_file()}
    folders |= {card.parent for card in out.glob(f"*/seed_*/fold_*/{CARD_FILE}")}
    finished = sorted(folders, key=natural_sort_key)
    if not finished:
        return
    try:
        joined = Predictions.concatenate(map(read_predictions, finished))
    except SacMILError as error:
        raise RunError(f"{out}: {error}") from error
    write_predictions(out / PREDICTIONS_FILE, joined)
    if localised := [row for folder in finished for row in read_localization(folder)]:
        write_localization(out / LOCALIZATION_FILE, localised)
