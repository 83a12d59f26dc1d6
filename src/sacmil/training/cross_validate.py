"""Cross-validation: run a job for every model, seed and fold, then join their predictions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from sacmil.cohorts.cohort import Cohort
from sacmil.cohorts.splits import Fold
from sacmil.errors import RunError, SacMILError, explain_os_error
from sacmil.parallel import TaskOutcome, WorkerPool
from sacmil.progress import ProgressCallback, ignore_progress
from sacmil.results import (
    LOCALIZATION_FILE,
    PREDICTIONS_FILE,
    Predictions,
    read_localization,
    read_predictions,
    write_localization,
    write_predictions,
)
from sacmil.training.bag_checks import check_and_hash_bags
from sacmil.training.config import TrainingConfig
from sacmil.training.job import DeviceConfig, TrainingJob, check_models, list_labeled_bags, run_job
from sacmil.training.loading import CacheMode
from sacmil.training.log import read_last_epoch
from sacmil.training.run_folder import open_run, write_configs

_POLL_S = 0.5


Engine = Callable[
    [Sequence["TrainingJob"], "TrainingResources", "_ProgressMonitor"], Iterator[TaskOutcome]
]


@dataclass(frozen=True)
class TrainingResources:
    """Devices and processes that jobs are distributed over."""

    devices: tuple[str, ...] = ("cpu",)
    """One device per worker; list a device twice to run two jobs on it."""
    threads: int | None = None
    """Of torch for each job on a CPU; None divides the cores evenly."""
    cache: CacheMode = "auto"
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    """Of the Ray cluster; None uses the local one, or starts one."""


class CrossValidationResult(NamedTuple):
    """Predictions and failures of a cross-validation."""

    predictions: Predictions | None
    """Of all finished jobs; None if no job is finished."""
    failures: dict[str, str]
    """Error message by job."""


def cross_validate(
    out: Path,
    cohort: Cohort,
    bags: Mapping[str, Path],
    folds: Sequence[Fold],
    configs: Mapping[str, TrainingConfig],
    *,
    seeds: Sequence[int] = (0,),
    resources: TrainingResources | None = None,
    on_progress: ProgressCallback = ignore_progress,
) -> CrossValidationResult:
    """Train and test every configuration on every fold with every seed.

    Jobs finished in ``out`` are skipped; interrupted jobs are resumed.

    Args:
        out: the run folder.
        cohort: the slides and their labels.
        bags: path of the bag, by slide id.
        folds: training, validation and test sets.
        configs: what to train, by its name in tables and folders.
        seeds: each replaces the seed of every configuration.
        resources: what to train on.
        on_progress: called with the number of epochs done.
    """
    resources, report = resources or TrainingResources(), on_progress
    _check_names(configs)
    check_models(configs.values(), bags, cohort.classes)
    with open_run(out, cohort, folds, "crossval", seeds):
        hashes = check_and_hash_bags(out, bags, report)
        jobs = list(_make_jobs(out, cohort, bags, hashes, folds, configs, seeds))
        pending = [job for job in jobs if not job.is_finished()]  # raises on a different job
        write_configs(out, configs)
        failures = _run_jobs(jobs, pending, resources, report)
        return CrossValidationResult(_collect_predictions(out, jobs), failures)


def _check_names(configs: Mapping[str, TrainingConfig]) -> None:
    for name in configs:
        if not re.fullmatch(r"[\w=+][\w.=+-]*", name):
            raise RunError(
                f"{name!r} is not a portable folder name; expected letters, digits and _ . = + -"
            )


def _make_jobs(
    out: Path,
    cohort: Cohort,
    bags: Mapping[str, Path],
    hashes: Mapping[str, str],
    folds: Sequence[Fold],
    configs: Mapping[str, TrainingConfig],
    seeds: Sequence[int],
) -> Iterator[TrainingJob]:
    """Yield jobs fold by fold, so that every model has first results early."""
    for seed in seeds:
        for number, fold in enumerate(folds):
            train, val, test = (list_labeled_bags(cohort, ids, bags, hashes) for ids in fold)
            for name, config in configs.items():
                yield TrainingJob(
                    folder=out / name / f"seed_{seed}" / f"fold_{number}",
                    name=name,
                    config=replace(config, seed=seed),
                    classes=cohort.classes,
                    fold=number,
                    train=train,
                    val=val,
                    test=test,
                )


def _run_jobs(
    jobs: Sequence[TrainingJob],
    pending: Sequence[TrainingJob],
    resources: TrainingResources,
    on_progress: ProgressCallback,
) -> dict[str, str]:
    """Run pending jobs and return the error message of each that failed."""
    monitor = _ProgressMonitor(jobs, pending, on_progress)
    monitor.report_progress()
    failures: dict[str, str] = {}
    for outcome in _choose_engine(resources)(pending, resources, monitor):
        job = pending[outcome.key]
        if outcome.failure is not None:
            failures[f"{job.name}, seed {job.config.seed}, fold {job.fold}"] = outcome.failure
        monitor.finish_job(job)
    return failures


def _choose_engine(resources: TrainingResources) -> Engine:
    if resources.engine == "ray":
        return _run_on_ray
    return _run_in_process if len(resources.devices) == 1 else _run_in_workers


def _run_in_process(
    pending: Sequence[TrainingJob], resources: TrainingResources, monitor: _ProgressMonitor
) -> Iterator[TaskOutcome]:
    """Run one job after the other in this process: one device needs no worker process."""
    threads = torch.get_num_threads()
    device_config = DeviceConfig(resources.devices[0], resources.cache, resources.threads)
    try:
        for index, job in enumerate(pending):
            try:
                run_job(job, device_config, on_epoch=lambda line: monitor.report_progress())
                yield TaskOutcome(index, None, None)
            except SacMILError as error:
                yield TaskOutcome(index, None, str(error))
            except OSError as error:
                yield TaskOutcome(index, None, explain_os_error(error))
    finally:
        torch.set_num_threads(threads)


def _run_in_workers(
    pending: Sequence[TrainingJob], resources: TrainingResources, monitor: _ProgressMonitor
) -> Iterator[TaskOutcome]:
    """Run jobs in one process per device; each job gets the next free device."""
    if not pending:
        return
    devices = resources.devices[: len(pending)]
    threads = resources.threads or _count_threads_per_worker(len(devices))
    free = list(devices)[::-1]
    device_of: dict[int, str] = {}
    waiting = list(range(len(pending)))[::-1]
    with WorkerPool(len(devices), memory_limit=0, threads=threads) as workers:
        while waiting or workers.pending_count:
            while waiting and free:
                index, device = waiting.pop(), free.pop()
                device_of[index] = device
                device_config = DeviceConfig(device, resources.cache, threads)
                workers.submit(index, run_job, pending[index], device_config, limit_s=float("inf"))
            outcome = workers.next_outcome(_POLL_S)
            monitor.report_progress()
            if outcome is not None:
                free.append(device_of.pop(outcome.key))
                yield outcome


def _run_on_ray(
    pending: Sequence[TrainingJob], resources: TrainingResources, monitor: _ProgressMonitor
) -> Iterator[TaskOutcome]:
    from sacmil.parallel.ray import run_each_on_ray

    gpus = int(any(device.startswith("cuda") for device in resources.devices))
    device = "cuda:0" if gpus else "cpu"
    device_config = DeviceConfig(device, resources.cache, resources.threads or 1)
    yield from run_each_on_ray(
        make_job_runner,
        (device_config,),
        pending,
        cpus=device_config.threads or 1,
        gpus=gpus,
        address=resources.address,
        on_wait=monitor.report_progress,
    )


def make_job_runner(device_config: DeviceConfig) -> Callable[[TrainingJob], None]:
    """Return the function that an actor of a Ray cluster runs for each job."""
    return lambda job: run_job(job, device_config)


def _count_threads_per_worker(workers: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // workers)


class _ProgressMonitor:
    """Reports the progress of all jobs from the metrics in their folders."""

    def __init__(
        self,
        jobs: Sequence[TrainingJob],
        pending: Sequence[TrainingJob],
        on_progress: ProgressCallback,
    ) -> None:
        self._on_progress = on_progress
        self._finished = len(jobs) - len(pending)
        self._count = len(jobs)
        self._open = {job.folder: job.epochs for job in pending}
        self._total = sum(job.epochs for job in jobs)
        self._done = self._total - sum(self._open.values())

    def report_progress(self) -> None:
        """Report epochs done, jobs finished and the newest loss."""
        done, losses = self._done, []
        for folder, epochs in self._open.items():
            line = read_last_epoch(folder)
            if line is not None:
                done += min(int(line["epoch"]), epochs)
                losses.append(float(line["loss"]))
        newest = f", loss {sum(losses) / len(losses):.4f}" if losses else ""
        jobs = f"{self._finished} of {self._count} jobs"
        self._on_progress("cross-validation, epochs", done, self._total, jobs + newest)

    def finish_job(self, job: TrainingJob) -> None:
        """Count a job as finished, after an early stop or a failure too."""
        self._done += self._open.pop(job.folder)
        self._finished += 1
        self.report_progress()


def _collect_predictions(out: Path, jobs: Sequence[TrainingJob]) -> Predictions | None:
    """Write the predictions of all finished jobs, of models trained here before too."""
    folders = {job.folder for job in jobs}
    folders |= {card.parent for card in out.glob("*/seed_*/fold_*/card.json")}
    finished = [
        folder
        for folder in sorted(folders, key=_natural_sort_key)
        if (folder / "card.json").is_file()
    ]
    if not finished:
        return None
    try:
        joined = Predictions.concatenate(map(read_predictions, finished))
    except SacMILError as error:
        raise RunError(f"{out}: {error}") from error
    write_predictions(out / PREDICTIONS_FILE, joined)
    if localised := [row for folder in finished for row in read_localization(folder)]:
        write_localization(out / LOCALIZATION_FILE, localised)
    return joined


def _natural_sort_key(path: Path) -> list[object]:
    """Sort fold_10 after fold_9."""
    words = re.split(r"(\d+)", str(path))
    return [int(word) if word.isdigit() else word for word in words]
