"""Training of one model on one fold, or on every slide; the run folder is a model folder."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sacmil.arguments import to_integer, to_output_folder
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.split_cohort import FoldChoice, resolve_folds
from sacmil.cohorts.splits import make_training_only_fold
from sacmil.errors import CohortWarning, ConfigError
from sacmil.progress import ProgressCallback, ignore_progress
from sacmil.results.run import Run
from sacmil.training.config import DEFAULT_MODEL, Overrides, TrainingConfig, resolve_configs
from sacmil.training.cross_validate import RunPlan, check_dataset, open_jobs
from sacmil.training.devices import resolve_device
from sacmil.training.loading import CacheMode
from sacmil.training.run_jobs import EpochMonitor, TrainingResources, run_jobs


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
        model: a name or a configuration. None takes that of ``config``, or sac_mil_local.
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
        ...     tested = run.predictions.split == "test"
        >>> run.models, int(tested.sum())
        (('abmil',), 4)
    """
    check_dataset(dataset)
    folder = to_output_folder(out)
    chosen = _resolve_config(model, seed=seed, config=config, recipe=recipe, options=options)
    if every_slide:
        _check_no_folds({"fold": fold, "folds": folds})
        chosen = _keep_last_epoch(chosen)
        made = [make_training_only_fold(dataset.cohort)]
    else:
        made = resolve_folds(dataset.cohort, 5 if folds is None else folds)
    number = 0 if fold is None else to_integer("fold", fold)
    if not 0 <= number < len(made):
        raise ConfigError(f"`fold` is {number}; there are folds 0 to {len(made) - 1}")
    plan = RunPlan(folder, dataset, made, {chosen.model: chosen}, [chosen.seed], number)
    resources = TrainingResources((resolve_device(device),), threads, cache)
    with open_jobs(plan, on_progress) as jobs:
        pending = [job for job in jobs if not job.is_finished()]  # raises on a different job
        for failed in run_jobs(pending, resources, EpochMonitor(on_progress)):
            assert failed.error is not None  # the job ran in this process
            raise failed.error
    return Run(plan.out)


def _resolve_config(
    model: str | TrainingConfig | Mapping[str, Any] | None,
    *,
    seed: int | None,
    **arguments: Any,
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
    return chosen if seed is None else replace(chosen, seed=to_integer("seed", seed, 0))


def _check_no_folds(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"`{name}` and `every_slide` exclude each other; leave one out")


def _keep_last_epoch(config: TrainingConfig) -> TrainingConfig:
    """Return the configuration with monitor=last, for a fold without a validation set."""
    if config.to_recipe().monitor == "last":
        return config
    training = {**config.training, "monitor": "last", "patience": None}
    changed = replace(config, training=training)
    warnings.warn(
        f"the recipe {config.recipe} chooses its epoch on a validation set, and training on every "
        f"slide has none. The last of {changed.to_recipe().epochs} epochs is kept; set epochs to "
        "the number that cross-validation found best",
        CohortWarning,
        stacklevel=3,
    )
    return changed
