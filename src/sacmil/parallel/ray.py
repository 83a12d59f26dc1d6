"""Call a function with many items on a Ray cluster, one item at a time per actor.

Actors, nodes and connections may be lost at any time. The item of a lost actor is queued again,
and a new actor starts where the cluster has free resources. An item is only given to a running
actor. An actor without an item is released, so that no task waits for cores of an idle actor.
"""

from __future__ import annotations

import contextlib
import os
import sysconfig
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from sacmil.errors import MissingExtraError, SacMILError
from sacmil.parallel.local import TaskOutcome, list_import_folders

_POLL_S = 0.5

MAX_CRASHES = 3
"""An item fails once its worker process has died this often on nodes that are still alive."""

MAX_LOSSES = 10
"""An item fails once its worker was lost this often for any reason, such as a lost node."""

MAX_FAILED_STARTS = 3
"""No actor is started after this many failed starts in a row per actor that fits."""

MAX_CAPACITY_WAIT_S = 300.0
"""How long a run waits for a node when no node can hold an actor any more."""


def run_each_on_ray(
    factory: Callable[..., Callable[[Any], Any]],
    arguments: tuple[Any, ...],
    items: Iterable[Any],
    *,
    cpus: int = 1,
    gpus: int = 0,
    address: str | None = None,
    on_wait: Callable[[], None] | None = None,
) -> Iterator[TaskOutcome]:
    """Call the function that ``factory(*arguments)`` returns with each item.

    Outcomes are yielded as calls end.

    Args:
        factory: called once in every actor; the function it returns is kept there.
        arguments: of the factory.
        items: the arguments of the function, one per call.
        cpus: cores each actor takes; there are as many actors as fit on the cluster.
        gpus: GPUs each actor takes.
        address: of a running cluster. None uses the one in ``RAY_ADDRESS`` or one that runs on
            this machine, and starts a temporary one if there is none; "local" always starts one.
        on_wait: called from time to time while no call ends.
    """
    with _open_connection(address) as ray:
        pool = _ActorPool(ray, (factory, arguments), {"num_cpus": cpus, "num_gpus": gpus})
        try:
            for outcome in pool.run(list(items)):
                if outcome is not None:
                    yield outcome
                elif on_wait is not None:
                    on_wait()
        finally:
            pool.release_all()


@contextlib.contextmanager
def _open_connection(address: str | None) -> Iterator[Any]:
    """Connect to Ray; a connection that the caller made before stays open."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtraError("ray", "work on a Ray cluster") from error
    if ray.is_initialized():
        yield ray
        return
    _init_ray(ray, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _init_ray(ray: Any, address: str | None) -> None:
    # An existing cluster rejects num_cpus and similar options, so none of them is given.
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address in (None, "local"):
        options["include_dashboard"] = False
    try:
        with contextlib.chdir(_choose_working_directory()):
            ray.init(address=address, **options)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        used = address or os.environ.get("RAY_ADDRESS")
        found = f"there is no Ray cluster at {used!r}" if used else "Ray could not be started"
        raise SacMILError(
            f"{found} ({error}); start a cluster with `ray start --head`, or give the address "
            "'local' to start a temporary one on this machine"
        ) from error


def _choose_working_directory() -> Path:
    """Return the working directory, or the standard library's if no code may run from it.

    Ray puts the directory that a driver connects from in front of the import path of all its
    workers, before our code runs there. A queue.py among downloaded files must not run.
    """
    here = Path.cwd()
    return here if str(here) in list_import_folders() else Path(sysconfig.get_path("stdlib"))


class _RayActor:
    """The class that runs in an actor."""

    def __init__(
        self,
        factory: Callable[..., Callable[[Any], Any]],
        arguments: tuple[Any, ...],
        working_directory: str,
    ) -> None:
        self._factory, self._arguments = factory, arguments
        with contextlib.suppress(OSError):  # a machine may lack it; relative paths fail there
            os.chdir(working_directory)

    def locate(self) -> str:
        """Return the id of this actor's node."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def run(self, item: Any) -> tuple[Any, str | None]:
        """Return the value and None, or None and the reason of the failure."""
        try:
            return self._call(item), None
        except SacMILError as error:
            return None, str(error)

    @cached_property
    def _call(self) -> Callable[[Any], Any]:
        """The function; it is made at the first item, so that a crash counts for one."""
        return self._factory(*self._arguments)


class _StartedActor(NamedTuple):
    """An actor that has started."""

    actor: Any
    node: str


class _ActorPool:
    """Actors of a cluster that process items.

    Args:
        ray: the module, connected.
        factory_call: the factory of the function, and its arguments.
        resources: what each actor takes, as options of ``ray.remote``.
    """

    def __init__(
        self,
        ray: Any,
        factory_call: tuple[Callable[..., Any], tuple[Any, ...]],
        resources: Mapping[str, int],
    ) -> None:
        self._ray, self._resources = ray, resources
        self._type = ray.remote(max_restarts=0, max_task_retries=0, **resources)(_RayActor)
        self._arguments = (*factory_call, str(Path.cwd()))
        self._starting: dict[Any, Any] = {}
        self._idle: list[_StartedActor] = []
        self._running: dict[Any, tuple[int, _StartedActor]] = {}
        self._losses: dict[int, list[str | None]] = {}
        """By item, the node of each lost worker; None if the node itself was lost."""
        self._failed_starts, self._start_error = 0, ""
        self._last_capacity_time = float("-inf")

    def run(self, items: Sequence[Any]) -> Iterator[TaskOutcome | None]:
        """Yield outcomes, and None whenever there is none for a while."""
        waiting = deque(range(len(items)))
        while waiting or self._running:
            self._start_actors(len(waiting))
            while waiting and self._idle:
                index, worker = waiting.popleft(), self._idle.pop()
                self._running[worker.actor.run.remote(items[index])] = (index, worker)
            if not waiting:
                self._release_unused()
            yield self._next_outcome(waiting)

    def release_all(self) -> None:
        """Kill all actors, even running ones."""
        self._release_unused()
        for _, worker in self._running.values():
            self._ray.kill(worker.actor)
        self._running.clear()

    def _release_unused(self) -> None:
        for actor in [*self._starting.values(), *(worker.actor for worker in self._idle)]:
            self._ray.kill(actor)
        self._starting.clear()
        self._idle.clear()

    def _start_actors(self, waiting: int) -> None:
        nodes = self._find_live_nodes()
        capacity = sum(self._count_actors_that_fit(node) for node in nodes.values())
        self._check_capacity(capacity, nodes)
        present = len(self._starting) + len(self._idle) + len(self._running)
        if self._failed_starts >= MAX_FAILED_STARTS * max(capacity, 1):
            if not present:
                raise SacMILError(
                    f"no worker could be started on the Ray cluster: {self._start_error}; check "
                    "that sacmil is installed on all its nodes"
                )
            return
        for _ in range(min(capacity, waiting + len(self._running)) - present):
            actor = self._type.remote(*self._arguments)
            self._starting[actor.locate.remote()] = actor

    def _find_live_nodes(self) -> dict[str, Mapping[str, float]]:
        """Return the resources of each live node, by its id."""
        return {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}

    def _count_actors_that_fit(self, resources: Mapping[str, float]) -> int:
        """Return how many actors fit on one node."""
        names = {"num_cpus": "CPU", "num_gpus": "GPU"}
        return int(
            min(resources.get(names[key], 0) // n for key, n in self._resources.items() if n)
        )

    def _check_capacity(self, capacity: int, nodes: Mapping[str, Mapping[str, float]]) -> None:
        if capacity or self._running:
            self._last_capacity_time = time.monotonic()
        elif time.monotonic() - self._last_capacity_time >= MAX_CAPACITY_WAIT_S:
            cores, gpus = (sum(n.get(name, 0) for n in nodes.values()) for name in ("CPU", "GPU"))
            raise SacMILError(
                f"the Ray cluster has {len(nodes)} nodes with {cores:g} cores and {gpus:g} GPUs "
                f"in total; expected a node with at least {self._resources['num_cpus']} cores and "
                f"{self._resources['num_gpus']} GPUs for a worker; add one, or request less"
            )

    def _next_outcome(self, waiting: deque[int]) -> TaskOutcome | None:
        """Wait until an actor has started or its call has ended."""
        pending = [*self._running, *self._starting]
        if not pending:
            time.sleep(_POLL_S)  # until the cluster has room again
            return None
        ended, _ = self._ray.wait(pending, timeout=_POLL_S)
        if ended and ended[0] in self._running:
            return self._finish_item(ended[0], waiting)
        if ended:
            self._add_started_actor(ended[0])
        return None

    def _add_started_actor(self, ref: Any) -> None:
        """Add an actor that has started, or drop one that failed to start."""
        actor = self._starting.pop(ref)
        try:
            self._idle.append(_StartedActor(actor, self._ray.get(ref)))
            self._failed_starts = 0
        except self._ray.exceptions.RayError as error:
            self._ray.kill(actor)
            self._failed_starts += 1
            self._start_error = str(error).strip().splitlines()[-1]  # the rest is a traceback

    def _finish_item(self, ref: Any, waiting: deque[int]) -> TaskOutcome | None:
        """Return the outcome of a call that has ended; None if its item was queued again."""
        index, worker = self._running.pop(ref)
        exceptions = self._ray.exceptions
        try:
            value, failure = self._ray.get(ref)
        except exceptions.RayTaskError as error:
            value, cause = None, error.cause
            failure = f"a fault of sacmil, please report it: {type(cause).__name__}: {cause}"
        except exceptions.RayError as error:
            self._ray.kill(worker.actor)  # an actor that is only unreachable must not continue
            process_died = isinstance(
                error, (exceptions.ActorDiedError, exceptions.OutOfMemoryError)
            )
            reason = self._count_loss(index, worker.node if process_died else None)
            if reason is None:
                waiting.append(index)
                return None
            return TaskOutcome(index, None, reason)
        self._idle.append(worker)
        return TaskOutcome(index, value, failure)

    def _count_loss(self, index: int, node: str | None) -> str | None:
        """Count the loss of an item's worker; return a reason if the item has failed for good.

        A process that died counts against its item as long as its node is alive. One that died
        because its node was lost does not count, even if that loss is noticed only later.
        """
        losses = self._losses.setdefault(index, [])
        losses.append(node)
        live = self._find_live_nodes()
        crashes = sum(node in live for node in losses)
        if crashes >= MAX_CRASHES:
            return f"its worker process died {crashes} times"
        if len(losses) >= MAX_LOSSES:
            return f"its worker was lost {len(losses)} times, mostly because its node was lost"
        return None
