"""The same over a Ray cluster: actors hold something costly, items go to whoever is free.

An actor that dies is started again and its item retried, elsewhere if need be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sacmil.errors import MissingExtraError, SacMILError
from sacmil.parallel.local import Outcome

_POLL_S = 0.5

RETRIES = 2
"""How often an item is given to a new actor when the one at it dies."""


def run_each_on_ray(
    make: Callable[..., Callable[[Any], Any]],
    arguments: tuple[Any, ...],
    items: Iterable[Any],
    *,
    cpus: int = 1,
    gpus: int = 0,
    address: str | None = None,
    waiting: Callable[[], None] | None = None,
) -> Iterator[Outcome]:
    """Call what ``make(*arguments)`` returns with each item; outcomes come as they happen.

    Args:
        make: called once in every actor; what it returns is kept there.
        arguments: what it is called with.
        items: what the thing made is called with, one at a time.
        cpus: cores each actor takes; there are as many actors as the cluster has room for.
        gpus: GPUs each actor takes.
        address: of a running cluster; None starts one on this machine for the time being.
        waiting: called now and then while nothing ends.
    """
    ray = _connected(address)
    try:
        size = {"num_cpus": cpus, "num_gpus": gpus}
        for outcome in _outcomes(ray, make, arguments, list(items), size):
            if outcome is not None:
                yield outcome
            elif waiting is not None:
                waiting()
    finally:
        if address is None:
            ray.shutdown()


def _connected(address: str | None) -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtraError("ray", "--engine ray") from error
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if not ray.is_initialized():
            own: dict[str, Any] = {} if address else {"include_dashboard": False}
            ray.init(address=address, **own, **quiet)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise SacMILError(
            f"there is no Ray cluster at {address!r} ({error}); start one with "
            "`ray start --head`, or leave --address out"
        ) from error
    return ray


class _Holder:
    """What runs in an actor."""

    def __init__(
        self, make: Callable[..., Callable[[Any], Any]], arguments: tuple[Any, ...]
    ) -> None:
        self._call: Callable[[Any], Any] | None = None
        self._failure = ""
        try:
            self._call = make(*arguments)
        except SacMILError as error:
            self._failure = str(error)

    def run(self, item: Any) -> tuple[Any, str | None]:
        """The value, or why there is none."""
        if self._call is None:
            return None, self._failure
        try:
            return self._call(item), None
        except SacMILError as error:
            return None, str(error)


def _outcomes(
    ray: Any,
    make: Callable[..., Any],
    arguments: tuple[Any, ...],
    items: list[Any],
    size: dict[str, int],
) -> Iterator[Outcome | None]:
    """Outcomes, and None whenever nothing has ended for a while."""
    remote = ray.remote(max_restarts=-1, max_task_retries=RETRIES, **size)
    actors = min(_room(ray, size), len(items))
    idle = [remote(_Holder).remote(make, arguments) for _ in range(actors)]
    waiting = list(enumerate(items))[::-1]
    under_way: dict[Any, tuple[int, Any]] = {}
    while waiting or under_way:
        while waiting and idle:
            index, item = waiting.pop()
            actor = idle.pop()
            under_way[actor.run.remote(item)] = (index, actor)
        over, _ = ray.wait(list(under_way), timeout=_POLL_S)
        if not over:
            yield None
            continue
        ended = over[0]
        index, actor = under_way.pop(ended)
        idle.append(actor)
        yield Outcome(index, *_answer(ray, ended))


def _room(ray: Any, size: dict[str, int]) -> int:
    """How many actors the cluster can hold."""
    there = ray.cluster_resources()
    room = [there.get(name[4:-1].upper(), 0) // n for name, n in size.items() if n]
    if not min(room):
        raise SacMILError(
            f"the Ray cluster has {there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs; "
            f"expected at least {size['num_cpus']} and {size['num_gpus']}"
        )
    return int(min(room))


def _answer(ray: Any, ended: Any) -> tuple[Any, str | None]:
    try:
        value, failure = ray.get(ended)
    except ray.exceptions.RayActorError:
        return None, f"the process at it died {RETRIES + 1} times"
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        return None, f"a fault of sacmil, please report it: {type(cause).__name__}: {cause}"
    return value, failure
