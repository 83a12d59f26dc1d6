"""Jobs are added to a GPU as long as all of them together get faster, and memory suffices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sleeping_job
from small_cohort import write_material

from sacmil.training import run_jobs
from sacmil.training.sharing import MAX_JOBS, Epoch, SharedDevice, measure_free_memory
from sacmil.training.train import cross_validate


class Gpu:
    """Simulated: a single job takes a second for an epoch, of which the GPU works for a share."""

    def __init__(self, busy: float, memory: float = math.inf, per_job: float = 1.0) -> None:
        self.busy, self.memory, self.per_job = busy, memory, per_job
        self.progress: dict[int, float] = {}
        self.epochs: dict[int, Epoch] = {}
        self.speeds: dict[int, float] = {}

    def measure_free(self) -> float:
        return self.memory - self.per_job * len(self.progress)

    def run(self, seconds: float = 0.1) -> None:
        """All jobs work at the same pace; the GPU does one thing at a time."""
        for key, done in self.progress.items():
            slowest = max(1.0, self.busy * len(self.progress)) / self.speeds.get(key, 1.0)
            self.progress[key] = done + seconds / slowest
            if int(self.progress[key]) > int(done):
                self.epochs[key] = Epoch(int(self.progress[key]), slowest)


def train(gpu: Gpu, *, jobs: int = 40, epochs: int = 20, most: int = MAX_JOBS) -> SharedDevice:
    """Train jobs, one after the other as there is room; return the device after the last."""
    device = SharedDevice(most, gpu.measure_free)
    waiting, steps = list(range(jobs)), 0
    while waiting or gpu.progress:
        while waiting and device.has_room:
            key = waiting.pop(0)
            device.start(key)
            gpu.progress[key] = 0.0
        assert len(gpu.progress) <= most
        gpu.run()
        for key in [key for key, done in gpu.progress.items() if done >= epochs]:
            del gpu.progress[key]
            device.end(key)
        device.judge({key: gpu.epochs[key] for key in gpu.progress if key in gpu.epochs})
        steps += 1
        assert steps < 100_000
    return device


@pytest.mark.parametrize(
    ("busy", "expected"), [(1.0, 1), (0.6, 2), (0.5, 2), (0.34, 3), (0.25, 4), (0.1, 10)]
)
def test_as_many_jobs_as_keep_the_gpu_busy_run_at_once(busy: float, expected: int) -> None:
    """One more job than that would make the others slower by as much as it adds."""
    assert train(Gpu(busy)).allowed in (expected, expected + 1)


def test_a_job_that_uses_the_whole_gpu_gets_it_back() -> None:
    """Two such jobs take longer together than one after the other, as they wait for each other."""

    class Crowded(Gpu):
        def run(self, seconds: float = 0.1) -> None:
            super().run(seconds * (0.8 if len(self.progress) > 1 else 1.0))
            self.epochs |= {
                key: epoch._replace(seconds=epoch.seconds / 0.8)
                for key, epoch in self.epochs.items()
                if len(self.progress) > 1 and epoch.seconds == 2.0
            }

    device = train(Crowded(1.0))
    assert (device.allowed, device.is_settled) == (1, True)


@pytest.mark.parametrize(("memory", "expected"), [(1.5, 1), (3.5, 3), (4.3, 4), (100.0, 10)])
def test_memory_limits_the_number(memory: float, expected: int) -> None:
    gpu = Gpu(0.1, memory=memory)
    found = train(gpu).allowed
    assert found <= memory, "never more than fit"
    assert found in (expected, expected - 1, expected + 1)


def test_no_more_than_the_most_run_at_once() -> None:
    assert train(Gpu(0.01), most=3).allowed == 3
    assert train(Gpu(0.01), most=1).allowed == 1


def test_models_of_different_speed_are_compared_with_themselves() -> None:
    """Every second model takes a tenth of the time; that is not what sharing gains or loses."""
    gpu = Gpu(0.34)
    gpu.speeds = {key: 10.0 for key in range(1, 40, 2)}
    assert train(gpu, epochs=60).allowed in (3, 4)


def test_jobs_too_short_to_be_measured_run_one_after_the_other() -> None:
    device = train(Gpu(0.1), epochs=2)
    assert (device.allowed, device.is_settled) == (1, False)


def test_epochs_from_before_a_change_do_not_count() -> None:
    device = SharedDevice(4, lambda: math.inf)
    device.start(0)
    device.judge({0: Epoch(7, 1.0)})
    device.judge({0: Epoch(8, 1.0)})
    assert device.allowed == 1, "epoch 8 began before the job was first seen"
    device.judge({0: Epoch(9, 1.0)})
    assert device.allowed == 2
    device.start(1)
    for number in (10, 11):
        device.judge({0: Epoch(number, 1.0)})
    assert device.allowed == 2, "epoch 11 may have begun before the second job"
    device.judge({0: Epoch(12, 1.0), 1: Epoch(1, 1.0)})
    assert device.allowed == 3


def test_jobs_are_added_while_others_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real processes, on a device where a further job slows none of the others."""
    monkeypatch.setattr(run_jobs, "run_job", sleeping_job.run)
    monkeypatch.setattr(run_jobs, "DeviceConfig", sleeping_job.Config)
    monkeypatch.setattr(run_jobs, "measure_free_memory", lambda device: math.inf)
    monkeypatch.setattr(run_jobs, "count_cores", lambda: 3)
    monkeypatch.setattr(run_jobs, "_POLL_S", 0.02)
    jobs: Any = [sleeping_job.SleepingJob(tmp_path / str(number)) for number in range(6)]
    progress: list[int] = []
    monitor = run_jobs.FolderMonitor(jobs, jobs, lambda title, done, *_: progress.append(done))
    resources = run_jobs.TrainingResources(("cpu",), is_shared=True)
    assert run_jobs.run_jobs(jobs, resources, monitor) == []
    assert progress[-1] == 6 * 20
    spans = [(job.folder / "span").read_text().split() for job in jobs]
    at_once = [
        sum(float(other[0]) <= float(began) < float(other[1]) for other in spans)
        for began, _, _ in spans
    ]
    assert min(at_once) == 1, "the first job begins by itself"
    assert 2 <= max(at_once) <= 3, "not more than there are cores"


def test_nothing_is_measured_where_the_number_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_jobs, "measure_free_memory", None)
    resources = run_jobs.TrainingResources(("cuda:0", "cuda:1", "cuda:0"))
    devices = run_jobs._make_devices(resources, 9)
    assert {name: device.allowed for name, device in devices.items()} == {"cuda:0": 2, "cuda:1": 1}
    assert all(device.is_settled for device in devices.values())


def test_memory_that_cannot_be_measured_is_none() -> None:
    assert measure_free_memory("cuda:99") == 0.0


@pytest.mark.gpu
def test_jobs_on_a_gpu_end_as_they_do_one_after_the_other(tmp_path: Path) -> None:
    data = write_material(tmp_path / "bags", patients=16).data
    given: Any = {"folds": 4, "devices": ["cuda:0"], "options": {"epochs": 30, "lr": 1e-2}}
    assert measure_free_memory("cuda:0") > 2**28
    runs = [
        cross_validate(data, "mean_pool", out=tmp_path / str(count), per_gpu=count, **given)
        for count in (1, "auto")
    ]
    ours, theirs = (run.predictions for run in runs)
    assert ours.slide_id.tolist() == theirs.slide_id.tolist()
    np.testing.assert_allclose(ours.probabilities, theirs.probabilities, atol=1e-5)
