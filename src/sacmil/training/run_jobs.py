"""Run training jobs: one after the other, in worker processes, or on a Ray cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch

from sacmil.arguments import ProgressCallback, to_integer
from sacmil.environment import count_cores, count_gpus, select_device
from sacmil.errors import (
    ConfigError,
    OptionError,
    SacMILError,
    explain_os_error,
    shorten_value,
    suggest_names,
)
from sacmil.parallel import TaskOutcome, WorkerPool
from sacmil.training.checkpoint import EpochMetrics, read_last_epoch
from sacmil.training.job import DeviceConfig, TrainingJob, run_job
from sacmil.training.loading import CacheMode
from sacmil.training.sharing import MAX_JOBS, Epoch, SharedDevice, measure_free_memory

_POLL_S = 0.5

EngineName = Literal["local", "ray"]
Devices = str | torch.device | Iterable[str | torch.device]
Monitor: TypeAlias = "FolderMonitor | EpochMonitor"


@dataclass(frozen=True)
class TrainingResources:
    """Devices and processes that jobs are distributed over."""

    devices: tuple[str, ...] = ("cpu",)
    """One device per worker; list a device twice to run two jobs on it."""
    is_shared: bool = False
    """Whether jobs are added to each device as long as all of them together get faster."""
    threads: int | None = None
    """Of torch for each job on a CPU; None divides the cores evenly."""
    cache: CacheMode = "auto"
    engine: EngineName = "local"
    address: str | None = None
    """Of the Ray cluster; None uses the local one, or starts one."""

    def __post_init__(self) -> None:
        if self.threads is not None:
            object.__setattr__(self, "threads", to_integer("threads", self.threads, 1))
        for name, kind in (("cache", CacheMode), ("engine", EngineName)):
            value, known = getattr(self, name), get_args(kind)
            if value not in known:
                given = shorten_value(value)
                raise OptionError(f"`{name}` is {given}; {suggest_names(str(value), known)}")

    @property
    def is_in_process(self) -> bool:
        """Whether one job runs after the other in this process: one device needs no other."""
        return self.engine == "local" and len(self.devices) == 1 and not self.is_shared


class FailedJob(NamedTuple):
    """A job that failed."""

    job: TrainingJob
    message: str
    error: Exception | None
    """What was raised, if the job ran in this process."""

    @property
    def name(self) -> str:
        """The model, seed and fold."""
        return f"{self.job.name}, seed {self.job.config.seed}, fold {self.job.fold}"


def run_jobs(
    jobs: Sequence[TrainingJob], resources: TrainingResources, monitor: Monitor
) -> list[FailedJob]:
    """Run jobs and return those that failed.

    Args:
        jobs: that are not finished.
        resources: what to train on.
        monitor: reports progress.
    """
    monitor.report_progress()
    if resources.engine == "ray":
        engine = _run_on_ray
    else:
        engine = _run_in_process if resources.is_in_process else _run_in_workers
    failed = []
    for outcome in engine(jobs, resources, monitor):
        job = jobs[outcome.key]
        if outcome.failure is not None:
            failed.append(FailedJob(job, outcome.failure, outcome.value))
        monitor.finish_job(job)
    return failed


def _run_in_process(
    pending: Sequence[TrainingJob], resources: TrainingResources, monitor: Monitor
) -> Iterator[TaskOutcome]:
    """Run one job after the other in this process."""
    threads = torch.get_num_threads()
    device_config = DeviceConfig(resources.devices[0], resources.cache, resources.threads)
    try:
        for index, job in enumerate(pending):
            try:
                run_job(job, device_config, on_epoch=partial(monitor.report_epoch, job))
                yield TaskOutcome(index, None, None)
            except SacMILError as error:
                yield TaskOutcome(index, error, str(error))
            except OSError as error:
                yield TaskOutcome(index, error, explain_os_error(error))
    finally:
        torch.set_num_threads(threads)


def _run_in_workers(
    pending: Sequence[TrainingJob], resources: TrainingResources, monitor: Monitor
) -> Iterator[TaskOutcome]:
    """Run each job in a process; it gets the device with the fewest jobs that has room."""
    devices = _make_devices(resources, len(pending))
    count = min(len(pending), sum(device.most for device in devices.values()))
    threads = resources.threads or max(1, count_cores() // max(1, count))
    waiting = list(range(len(pending)))[::-1]
    device_of: dict[int, str] = {}
    with WorkerPool(count, memory_limit=0, threads=threads) as workers:
        while waiting or workers.pending_count:
            while waiting and (free := [name for name in devices if devices[name].has_room]):
                index, name = waiting.pop(), min(free, key=lambda name: devices[name].count)
                devices[name].start(index)
                device_of[index] = name
                config = DeviceConfig(name, resources.cache, threads)
                workers.submit(index, run_job, pending[index], config, limit_s=float("inf"))
            outcome = workers.next_outcome(_POLL_S)
            monitor.report_progress()
            if outcome is not None:
                devices[device_of.pop(outcome.key)].end(outcome.key)
                yield outcome
            if waiting and not all(device.is_settled for device in devices.values()):
                epochs = _read_epochs(pending, device_of)
                for device in devices.values():
                    device.judge(epochs)


def _make_devices(resources: TrainingResources, jobs: int) -> dict[str, SharedDevice]:
    """Return each device by its name, with how many jobs it may have."""
    counts = Counter(resources.devices)
    if not resources.is_shared:
        return {name: SharedDevice(count) for name, count in counts.items()}
    most = min(MAX_JOBS, count_cores(), jobs) // len(counts)
    return {name: SharedDevice(most, partial(measure_free_memory, name)) for name in counts}


def _read_epochs(pending: Sequence[TrainingJob], running: Iterable[int]) -> dict[int, Epoch]:
    """Return the newest epoch of each running job that has one, by its index."""
    lines = {index: read_last_epoch(pending[index].folder) for index in running}
    return {
        index: Epoch(int(line["epoch"]), float(line["seconds"]))
        for index, line in lines.items()
        if line is not None
    }


def _run_on_ray(
    pending: Sequence[TrainingJob], resources: TrainingResources, monitor: Monitor
) -> Iterator[TaskOutcome]:
    from sacmil.parallel.ray import run_each_on_ray

    has_gpu = any(device.startswith("cuda") for device in resources.devices)
    threads = resources.threads or 1
    yield from run_each_on_ray(
        make_job_runner,
        (DeviceConfig("cuda:0" if has_gpu else "cpu", resources.cache, threads),),
        pending,
        cpus=threads,
        gpus=int(has_gpu),
        address=resources.address,
        on_wait=monitor.report_progress,
    )


def make_job_runner(device_config: DeviceConfig) -> Callable[[TrainingJob], None]:
    """Return the function that an actor of a Ray cluster runs for each job."""
    return lambda job: run_job(job, device_config)


class FolderMonitor:
    """Reports the progress of all jobs from the metrics in their folders.

    Args:
        jobs: all of them.
        pending: those that are not finished.
        on_progress: called with the number of epochs done.
    """

    def __init__(
        self,
        jobs: Sequence[TrainingJob],
        pending: Sequence[TrainingJob],
        on_progress: ProgressCallback,
    ) -> None:
        self._on_progress = on_progress
        self._finished, self._count = len(jobs) - len(pending), len(jobs)
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

    def report_epoch(self, job: TrainingJob, metrics: EpochMetrics) -> None:
        """Report the progress of all jobs."""
        self.report_progress()

    def finish_job(self, job: TrainingJob) -> None:
        """Count a job as finished, after an early stop or a failure too."""
        self._done += self._open.pop(job.folder)
        self._finished += 1
        self.report_progress()


class EpochMonitor:
    """Reports every epoch of a single job: its stage, loss and validation AUC.

    Args:
        on_progress: called with the number of epochs done.
    """

    def __init__(self, on_progress: ProgressCallback) -> None:
        self._on_progress = on_progress

    def report_progress(self) -> None:
        """Report nothing before the first epoch."""

    def report_epoch(self, job: TrainingJob, metrics: EpochMetrics) -> None:
        """Report an epoch."""
        stage = f", stage {metrics.stage + 1}" if metrics.stage else ""
        value, title = metrics.val_metric, job.task.metrics[job.task.headline].title
        validated = f", val {title} {value:.3f}" if value is not None else ""
        note = f"loss {metrics.loss:.4f}{validated}"
        self._on_progress(f"training {job.name}{stage}", metrics.epoch, job.epochs, note)

    def finish_job(self, job: TrainingJob) -> None:
        """Report nothing after the last epoch."""


def resolve_devices(
    devices: Devices, per_gpu: int | Literal["auto"], engine: str
) -> tuple[str, ...]:
    """Return the device of each job at a time; each GPU once if the number of jobs is auto.

    Args:
        devices: one or more; auto is all GPUs, or the CPU.
        per_gpu: jobs at once on each GPU.
        engine: with ray, the devices are those of other machines and are not checked.
    """
    count = 1 if per_gpu == "auto" else to_integer("per_gpu", per_gpu, 1, "auto")
    if devices == "auto":
        devices = _list_gpus() or ["cpu"]
    given = [devices] if isinstance(devices, str | torch.device) else devices
    listed = list(given) if isinstance(given, Iterable) else []
    if not listed or not all(isinstance(name, str | torch.device) for name in listed):
        raise ConfigError(
            f"`devices` is {shorten_value(devices)}; expected one device or more: auto, cpu, "
            "cuda:0, …"
        )
    names = tuple(map(str, listed))
    if engine != "ray":
        _check_devices(names)
    return names + tuple(name for name in names if name.startswith("cuda")) * (count - 1)


def _check_devices(names: Iterable[str]) -> None:
    """Reject devices that are missing."""
    # GPUs that exist are not tested: a test takes memory of each in this process.
    for name in {*names} - {"auto", "cpu", *_list_gpus()}:
        select_device(name)


def resolve_device(device: str | torch.device) -> str:
    """Return the name of one device, after a check."""
    if not isinstance(device, str | torch.device):
        given = shorten_value(device)
        raise ConfigError(f"`device` is {given}; expected a name: auto, cpu, cuda:0, …")
    _check_devices([str(device)])
    return str(device)


def _list_gpus() -> list[str]:
    return [f"cuda:{number}" for number in range(count_gpus())]
