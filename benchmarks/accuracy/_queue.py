"""Jobs side by side until they are done or the time is up; what is done is kept at once."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.accuracy._job import Job, digest
from benchmarks.accuracy._lines import Lines
from benchmarks.accuracy._plans import plan_name
from benchmarks.accuracy._train import Place, free_memory, make_bags, make_plans_of, train
from sacmil.parallel import TaskOutcome, WorkerPool

FORGET = float("inf")
"""No limit of its own for a job: the time for all of them is what is short."""


class Clock:
    """How much time is left.

    Args:
        minutes: from now on.
    """

    def __init__(self, minutes: float) -> None:
        self.end = time.monotonic() + 60 * minutes

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()


def work(jobs: Sequence[Job], lines: Lines, place: Place, workers: int, clock: Clock) -> bool:
    """Do what has not been done; whether all of it is done now.

    Args:
        jobs: of one study.
        lines: where results go.
        place: where to work.
        workers: processes.
        clock: when to stop.
    """
    todo = [job for job in jobs if job.key not in lines.done()]
    tell(f"{len(jobs) - len(todo)} of {len(jobs)} jobs are done")
    if not todo:
        return True
    with WorkerPool(workers, memory_limit=0) as pool:
        prepared = _prepare(todo, place, pool, clock)
        return prepared and _train_all(_grouped(todo), lines, place, pool, clock)


def tell(text: str) -> None:
    """One line, at once."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def _prepare(todo: Sequence[Job], place: Place, pool: WorkerPool, clock: Clock) -> bool:
    """Bags first, then plans, on all cores."""
    sources = {digest(dict(job.source)): job for job in todo}
    plans = {digest([dict(job.source), plan_name(job)]): job for job in todo}
    bags = [(make_bags, job.source) for job in sources.values()]
    for calls in (bags, [(make_plans_of, job) for job in plans.values()]):
        began = time.monotonic()
        for outcome in _all(calls, place, pool, clock):
            if outcome.failure:
                tell(f"cannot prepare {outcome.key}: {outcome.failure}")
        tell(f"{len(calls)} × {calls[0][0].__name__}: {time.monotonic() - began:.0f} s")
    return clock.left > 0


def _all(
    calls: Sequence[tuple[Callable[..., Any], Any]], place: Place, pool: WorkerPool, clock: Clock
) -> Iterator[TaskOutcome]:
    for number, (function, item) in enumerate(calls):
        pool.submit(number, function, item, place, limit_s=max(clock.left, 1))
    while (outcome := pool.next_outcome()) is not None:
        yield outcome


def _grouped(todo: Iterable[Job]) -> list[Job]:
    """In the order of the study: earlier jobs matter more."""
    return list(todo)[::-1]


def _train_all(
    waiting: list[Job], lines: Lines, place: Place, pool: WorkerPool, clock: Clock
) -> bool:
    """Hand out a job only while there is time for one like it, and memory for one more."""
    at: dict[str, Job] = {}
    longest: dict[str, float] = {}
    room = pool.count
    while (waiting or at) and clock.left > 0:
        while waiting and len(at) < room and longest.get(_like(waiting[-1]), 0) < clock.left:
            job = waiting.pop()
            at[job.key] = job
            pool.submit(job.key, attempt, job, place, limit_s=FORGET)
        if not at:
            break
        outcome = pool.next_outcome(timeout_s=min(max(clock.left, 0), 5))
        if outcome is not None:
            job = at.pop(outcome.key)
            found = outcome.value or {"failure": outcome.failure}
            if at and _out_of_memory(found):
                room = len(at)
                tell(f"{job.task} {job.variant}: no memory left; {room} at once from now on")
                waiting.append(job)
                continue
            _keep(lines, job, found, len(waiting) + len(at))
            like = _like(job)
            longest[like] = max(longest.get(like, 0), float(found.get("seconds", 0)))
    tell(f"{len(waiting) + len(at)} jobs are left")
    return not waiting and not at


def attempt(job: Job, place: Place) -> dict[str, Any]:
    """A job in a worker; what goes wrong is told with its place, for a line of its own."""
    try:
        return train(job, place)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({frame.name}, line {frame.lineno})"
        return {"failure": " ".join(text.split())[:500]}
    finally:
        free_memory()


def _out_of_memory(found: Mapping[str, Any]) -> bool:
    """Whether others had taken the device's memory: that says nothing about a job."""
    failure = str(found.get("failure", ""))
    return any(sign in failure for sign in ("out of memory", "ALLOC_FAILED"))


def _like(job: Job) -> str:
    return f"{job.task}/{job.model}"


def _keep(lines: Lines, job: Job, found: dict[str, Any], left: int) -> None:
    line = lines.append(job, found)
    tell(
        f"{job.task} {job.variant} fold {job.fold} seed {job.seed} {job.role}: "
        f"val {line['val_auc'] or '-'}, test {line['auc'] or '-'}, {line['seconds'] or '-'} s, "
        f"{left} left {line['failure']}"
    )
