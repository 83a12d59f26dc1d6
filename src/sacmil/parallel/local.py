"""Worker processes on this machine that run tasks one at a time; each may crash or hang.

Untrusted files can crash or hang the C libraries that read them, so only workers open them. A
crash becomes the reason why the task failed, and a new worker replaces the old one. Workers are
started as separate programs, not by multiprocessing, so that a user's script needs no
``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, cast

from sacmil.limits import max_worker_bytes
from sacmil.parallel._child import Allocator, SharedMemory, allocate_bytes, receive, send

_CHILD_PROGRAM = "from sacmil.parallel._child import main; main()"


class TaskOutcome(NamedTuple):
    """The result of a task."""

    key: Any
    value: Any
    """What the function returned."""
    failure: str | None
    """Why there is no value; None if the task succeeded."""


class _QueuedCall(NamedTuple):
    key: Any
    function: str
    arguments: tuple[Any, ...]
    limit_s: float


class _WorkerProcess:
    """One child process, its current task and the deadline of that task."""

    def __init__(self, pool: WorkerPool) -> None:
        self.task: _QueuedCall | None = None
        self.deadline = float("inf")
        self.stop_reason: str | None = None
        # Libraries must not start a thread per core in each of many processes.
        self._shared = SharedMemory.create()
        passed = [self._shared.descriptor] if self._shared else []
        environment = os.environ | {
            "OMP_NUM_THREADS": str(pool.threads),
            "PYTHONPATH": os.pathsep.join(list_import_folders()),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD_PROGRAM, *map(str, [pool.memory_limit, *passed])],
            pass_fds=passed,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self._listener = threading.Thread(target=self._listen, args=(pool,), daemon=True)
        self._listener.start()

    def _listen(self, pool: WorkerPool) -> None:
        stdout = cast("BufferedReader", self.process.stdout)
        try:
            while True:
                pool.results.put((self, receive(stdout, self._shared, pool.allocate)))
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            pool.results.put((self, None))

    @property
    def is_idle(self) -> bool:
        return self.task is None and self.stop_reason is None

    def start(self, task: _QueuedCall) -> None:
        self.task, self.deadline = task, time.monotonic() + task.limit_s
        with contextlib.suppress(OSError):  # it has died; the end of its output reports that
            send(cast("BinaryIO", self.process.stdin), (task.function, task.arguments))

    def stop(self, reason: str | None = None) -> None:
        self.stop_reason, self.deadline = reason, float("inf")
        self.process.kill()

    def join(self) -> int:
        """Wait until the process has ended, close its pipes, and return its exit code."""
        code = self.process.wait()
        self._listener.join()
        with contextlib.suppress(OSError):  # there may be input that it never read
            cast("BinaryIO", self.process.stdin).close()
        cast("BinaryIO", self.process.stdout).close()
        if self._shared:
            self._shared.close()
        return code

    def describe_exit(self) -> str:
        code = self.join()
        if self.stop_reason:
            return self.stop_reason
        if code < 0:
            return f"the worker process died ({signal.Signals(-code).name})"
        return f"the worker process ended by itself (exit code {code})"


class WorkerPool:
    """A number of worker processes; use it in a ``with`` block.

    Args:
        count: how many tasks run at the same time.
        memory_limit: bytes of address space per process; 0 is no limit, None that of limits.py.
        threads: of numeric libraries in each.
        allocate: returns the memory that large arrays of results are copied to.
    """

    def __init__(
        self,
        count: int,
        *,
        memory_limit: int | None = None,
        threads: int = 1,
        allocate: Allocator | None = None,
    ) -> None:
        self.count, self.threads = count, threads
        self.memory_limit = max_worker_bytes() if memory_limit is None else memory_limit
        self.allocate = allocate or allocate_bytes
        self.results: queue.SimpleQueue[tuple[_WorkerProcess, Any]] = queue.SimpleQueue()
        """What the processes return; None for one that has ended."""
        self._waiting: deque[_QueuedCall] = deque()
        self._workers: list[_WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()
            worker.join()

    def kill(self) -> None:
        """Kill the running workers, so that their tasks fail; another thread may call this."""
        for worker in list(self._workers):
            worker.process.kill()

    def submit(
        self, key: Any, function: Callable[..., Any], *arguments: Any, limit_s: float
    ) -> None:
        """Queue the call ``function(*arguments)``, which may take ``limit_s`` seconds.

        The worker imports the function by its module and name. Arguments and result are pickled.
        """
        name = f"{function.__module__}:{function.__qualname__}"
        self._waiting.append(_QueuedCall(key, name, arguments, limit_s))
        self._assign_tasks()

    @property
    def pending_count(self) -> int:
        """Number of tasks that were submitted and not yet returned by ``next_outcome``."""
        return len(self._waiting) + sum(worker.task is not None for worker in self._workers)

    def next_outcome(self, timeout_s: float | None = None) -> TaskOutcome | None:
        """Return the next task that ends, even by failure; None if none ends within the time."""
        until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while self.pending_count:
            outcome = self._wait_for_result(until)
            if outcome is not None or time.monotonic() >= until:
                return outcome
        return None

    def _wait_for_result(self, until: float) -> TaskOutcome | None:
        now = time.monotonic()
        with contextlib.suppress(queue.Empty):  # a result in the queue came in time
            return self._finish_task(*self.results.get_nowait())
        for worker in self._workers:
            if worker.deadline <= now and worker.task is not None:
                worker.stop(f"took longer than {worker.task.limit_s:g} s")
        nearest = min([until, *(worker.deadline for worker in self._workers)])
        timeout = None if nearest == float("inf") else max(nearest - now, 0.0)
        with contextlib.suppress(queue.Empty):
            return self._finish_task(*self.results.get(timeout=timeout))
        return None

    def _finish_task(
        self, worker: _WorkerProcess, result: tuple[Any, str | None] | None
    ) -> TaskOutcome | None:
        task, worker.task, worker.deadline = worker.task, None, float("inf")
        if result is None:
            result = (None, worker.describe_exit())
            self._workers.remove(worker)
        self._assign_tasks()
        return None if task is None else TaskOutcome(task.key, *result)

    def _assign_tasks(self) -> None:
        while self._waiting:
            idle = next((worker for worker in self._workers if worker.is_idle), None)
            if idle is None and len(self._workers) < self.count:
                idle = _WorkerProcess(self)
                self._workers.append(idle)
            if idle is None:
                return
            idle.start(self._waiting.popleft())


def list_import_folders() -> list[str]:
    """Return the import path for a child process: that of this one without the working directory.

    The working directory may hold downloaded files, and a queue.py in it must not run. It is kept
    if this process itself runs code from it, such as a study started in its own folder.
    """
    here = Path.cwd()
    ours = str(Path(__file__).parents[2])
    others = [folder for folder in sys.path if folder and Path(folder).resolve() != here]
    own = [str(here)] if _is_code_folder(here) else []
    return list(dict.fromkeys([*others, ours, *own]))


def _is_code_folder(folder: Path) -> bool:
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    paths = [Path(file) for file in files if file]
    code_folders = {
        p.parents[1] if p.name == "__init__.py" else p.parent for p in paths if p.is_absolute()
    }
    return folder in code_folders


def run_each(
    function: Callable[[Any], Any], items: Iterable[Any], *, workers: int = 1, limit_s: float = 300
) -> Iterator[TaskOutcome]:
    """Call a function with each item; yield outcomes as calls end, with the item's index as key.

    Args:
        function: a public function of an importable module.
        items: its arguments; each is pickled.
        workers: how many run at the same time.
        limit_s: seconds one call may take.
    """
    with WorkerPool(workers) as pool:
        for index, item in enumerate(items):
            pool.submit(index, function, item, limit_s=limit_s)
        while (outcome := pool.next_outcome()) is not None:
            yield outcome
