"""Ray: no item is lost with its node, nothing waits for ever, and no downloaded code runs."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_ray import ActorDiedError, ActorUnavailableError, FakeRay, OutOfMemoryError
from ray_cluster import busy_actors, extra_node
from ray_tasks import make_deadly, make_double, make_waiting, wait_for

from sacmil.errors import SacMILError
from sacmil.parallel import TaskOutcome
from sacmil.parallel import ray as engine
from sacmil.parallel.ray import MAX_CRASHES, MAX_LOSSES, run_each_on_ray


def run_on_fake(ray: FakeRay, items: int, *, cpus: int = 1) -> list[TaskOutcome]:
    pool = engine._ActorPool(ray, (make_double, ()), {"num_cpus": cpus, "num_gpus": 0})
    return sorted(outcome for outcome in pool.run(range(items)) if outcome is not None)


def read_last_line(text: str) -> str:
    """Return what a script printed last: Ray prints there too, such as that a node went away."""
    return (text.splitlines() or [""])[-1]


def test_an_actor_out_of_reach_costs_its_item_nothing() -> None:
    def run(item: int, tries: int) -> int:
        if item == 1 and tries <= MAX_CRASHES + 2:
            raise ActorUnavailableError
        return 2 * item

    assert run_on_fake(FakeRay(["a", "b"], run), 3) == [(i, 2 * i, None) for i in range(3)]


@pytest.mark.parametrize(
    ("error", "tries", "reason"),
    [
        (ActorDiedError, MAX_CRASHES, "its worker process died 3 times"),
        (OutOfMemoryError, MAX_CRASHES, "its worker process died 3 times"),
        (ActorUnavailableError, MAX_LOSSES, "its worker was lost 10 times"),
    ],
)
def test_an_item_that_always_loses_its_worker_fails(error, tries: int, reason: str) -> None:
    def run(item: int, tries: int) -> int:
        if item == 1:
            raise error
        return item

    ray = FakeRay(["a", "b"], run)
    first, second, third = run_on_fake(ray, 3)
    assert reason in second.failure
    assert (first.value, third.value) == (0, 2)
    assert ray.tries == {0: 1, 1: tries, 2: 1}


def test_deaths_on_a_node_that_went_away_are_forgiven() -> None:
    def run(item: int, tries: int) -> int:
        if tries == MAX_CRASHES:
            ray.live_nodes.remove("a")  # the raylet's end is noticed after its workers'
        if tries < 2 * MAX_CRASHES - 1:
            raise ActorDiedError
        return item

    ray = FakeRay(["a", "b"], run)
    assert run_on_fake(ray, 1) == [(0, 0, None)]


def test_no_actor_is_kept_without_an_item() -> None:
    live = []

    def run(item: int, tries: int) -> int:
        live.append(len(ray.actors))
        return item

    ray = FakeRay(["a", "b", "c"], run)
    assert len(run_on_fake(ray, 3)) == 3
    assert live[-1] == 1, "the last item has the only actor"


def test_workers_that_cannot_start_are_an_error() -> None:
    def fail() -> None:
        raise ActorDiedError("no module named sacmil")

    with pytest.raises(SacMILError, match="no module named sacmil"):
        run_on_fake(FakeRay(["a", "b"], lambda item, tries: item, start=fail), 3)


def test_a_cluster_that_lost_its_last_node_is_an_error(monkeypatch) -> None:
    def run(item: int, tries: int) -> int:
        ray.live_nodes.clear()
        raise ActorDiedError

    monkeypatch.setattr(engine, "MAX_CAPACITY_WAIT_S", 0.0)
    ray = FakeRay(["a"], run)
    with pytest.raises(SacMILError, match="0 nodes with 0 cores"):
        run_on_fake(ray, 1)


def test_a_worker_that_fits_no_node_is_an_error_at_once() -> None:
    ray = FakeRay(["a", "b"], lambda item, tries: item)
    with pytest.raises(SacMILError, match="expected a node with at least 2 cores"):
        run_on_fake(ray, 1, cpus=2)


def write_hostile_modules(folder: Path) -> Path:
    """Modules that Ray and sacmil import; each leaves a file named after it if it runs."""
    folder.mkdir()
    names = {*sys.stdlib_module_names, "numpy", "h5py", "torch", "ray", "psutil"} - {"__main__"}
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(folder / name)!r} + '.was-run', 'w')")
    return folder


def remove_when_busy(cluster: Any, node: Any, *, graceful: bool) -> None:
    wait_for(lambda: busy_actors(node))
    cluster.remove_node(node, allow_graceful=graceful)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("graceful", [False, True])
def test_no_item_is_lost_with_a_node_and_no_code_runs_from_the_working_directory(
    ray_cluster, tmp_path: Path, monkeypatch, *, graceful: bool
) -> None:
    def remove() -> None:
        remove_when_busy(ray_cluster, node, graceful=graceful)
        (tmp_path / "go").touch()

    downloads = write_hostile_modules(tmp_path / "downloads")
    monkeypatch.chdir(downloads)
    with extra_node(ray_cluster) as node, ThreadPoolExecutor() as threads:
        removed = threads.submit(remove)
        address = ray_cluster.address
        outcomes = list(run_each_on_ray(make_waiting, (tmp_path,), range(6), address=address))
        removed.result()
    assert sorted(outcomes) == [(i, 2 * i, None) for i in range(6)]
    assert not list(downloads.glob("*.was-run"))


@pytest.mark.slow
@pytest.mark.ray
def test_an_item_that_kills_its_worker_fails_and_the_others_are_done(ray_cluster) -> None:
    outcomes = run_each_on_ray(make_deadly, (), range(4), address=ray_cluster.address)
    assert sorted(outcomes, key=lambda outcome: outcome.key) == [
        (i, None, "its worker process died 3 times") if i == 1 else (i, 2 * i, None)
        for i in range(4)
    ]


@pytest.mark.slow
@pytest.mark.ray
def test_a_connection_of_the_caller_stays_open(ray_cluster) -> None:
    ray = pytest.importorskip("ray")
    ray.init(address=ray_cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        assert [outcome.value for outcome in run_each_on_ray(make_double, (), [1])] == [2]
        assert ray.is_initialized()
    finally:
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.ray
def test_a_temporary_cluster_runs_no_code_from_the_working_directory(
    ray_cluster, tmp_path: Path
) -> None:
    downloads = write_hostile_modules(tmp_path / "downloads")
    script = (
        "from ray_tasks import make_double\n"
        "from sacmil.parallel.ray import run_each_on_ray\n"
        "print([o.value for o in run_each_on_ray(make_double, (), [21], address='local')])\n"
    )
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, cwd=downloads, capture_output=True, text=True, timeout=120)
    assert read_last_line(done.stdout) == "[42]", done.stderr
    assert not list(downloads.glob("*.was-run"))


@pytest.mark.slow
@pytest.mark.ray
def test_a_study_may_send_functions_of_its_own_folder(ray_cluster, tmp_path: Path) -> None:
    (tmp_path / "own_tasks.py").write_text("def make(): return lambda item: 2 * item\n")
    (tmp_path / "study.py").write_text(
        "import sys; from own_tasks import make\n"
        "from sacmil.parallel.ray import run_each_on_ray\n"
        "print([o.value for o in run_each_on_ray(make, (), [21], address=sys.argv[1])])\n"
    )
    command = [sys.executable, "study.py", ray_cluster.address]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert read_last_line(done.stdout) == "[42]", done.stderr
