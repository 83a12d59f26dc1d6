"""Training of one model on one fold, or on every slide; the run folder is a model folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sacmil.cohorts.cohort import Cohort
from sacmil.cohorts.splits import Fold
from sacmil.errors import CohortError
from sacmil.progress import ProgressCallback, ignore_progress
from sacmil.training.bag_checks import check_and_hash_bags
from sacmil.training.checkpoint import EpochMetrics
from sacmil.training.config import TrainingConfig
from sacmil.training.job import DeviceConfig, TrainingJob, check_models, list_labeled_bags, run_job
from sacmil.training.run_folder import open_run


def train_fold(
    out: Path,
    cohort: Cohort,
    bags: Mapping[str, Path],
    folds: Sequence[Fold],
    config: TrainingConfig,
    *,
    fold: int = 0,
    device_config: DeviceConfig | None = None,
    on_progress: ProgressCallback = ignore_progress,
    on_epoch: Callable[[EpochMetrics, int], None] = lambda line, epochs: None,
) -> None:
    """Train on one fold; resume an interrupted run, return at once if it is finished.

    Args:
        out: the run folder.
        cohort: the slides and their labels.
        bags: path of the bag, by slide id.
        folds: training, validation and test sets.
        config: what to train, and how.
        fold: index of the fold.
        device_config: where to train.
        on_progress: called with the number of bags checked.
        on_epoch: called with every epoch and their total number.
    """
    if not 0 <= fold < len(folds):
        raise CohortError("--fold", [f"{fold}: there are folds 0 to {len(folds) - 1}"])
    check_models([config], bags, cohort.classes)
    with open_run(out, cohort, folds, "train", [config.seed]):
        hashes = check_and_hash_bags(out, bags, on_progress)
        train, val, test = (list_labeled_bags(cohort, ids, bags, hashes) for ids in folds[fold])
        job = TrainingJob(
            folder=out,
            name=config.model,
            config=config,
            classes=cohort.classes,
            fold=fold,
            train=train,
            val=val,
            test=test,
        )
        run_job(job, device_config, on_epoch=lambda metrics: on_epoch(metrics, job.epochs))


def keep_last_epoch(config: TrainingConfig) -> TrainingConfig:
    """Return the configuration with monitor=last, for a fold without a validation set."""
    if config.to_recipe().monitor == "last":
        return config
    return replace(config, training={**config.training, "monitor": "last", "patience": None})
