"""The program of a worker process: it runs tasks of its parent, one at a time.

It ends when the parent ends. Messages use its standard input and output, so output that libraries
print is discarded.
"""

from __future__ import annotations

import importlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from io import BufferedReader, BufferedWriter
from typing import Any

from sacmil.errors import SacMILError, explain_os_error
from sacmil.parallel._messages import SharedMemory, receive, send


def main() -> None:
    """Run the tasks that the parent sends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and stops this one
    tasks, results = _open_streams()
    _limit_memory(int(sys.argv[1]))
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks, inbox), daemon=True).start()
    shared = SharedMemory(int(sys.argv[2])) if len(sys.argv) > 2 else None
    while True:
        send(results, _run_task(*inbox.get()), shared)


def _open_streams() -> tuple[BufferedReader, BufferedWriter]:
    tasks, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null_device = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null_device, descriptor)
    return tasks, results


def _listen(tasks: BufferedReader, inbox: queue.SimpleQueue[Any]) -> None:
    try:
        while True:
            inbox.put(receive(tasks))
    finally:  # the parent has ended, or its message cannot be unpickled here
        os._exit(0)  # even if a task is still running


def _limit_memory(limit: int) -> None:
    """Limit the address space, so that a huge allocation raises an error in this process only."""
    if limit and sys.platform != "win32":
        import resource

        # A lower limit by ulimit is kept: raising it would be an error.
        _, allowed = resource.getrlimit(resource.RLIMIT_AS)
        limit = limit if allowed == resource.RLIM_INFINITY else min(limit, allowed)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _run_task(function: str, arguments: tuple[Any, ...]) -> tuple[Any, str | None]:
    try:
        return _import_function(function)(*arguments), None
    except SacMILError as error:
        return None, str(error)
    except MemoryError:
        return None, "needs more memory than a worker process may have"
    except OSError as error:
        return None, explain_os_error(error, "a file")
    except Exception as error:
        return None, f"a fault of sacmil, please report it: {type(error).__name__}: {error}"


def _import_function(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


if __name__ == "__main__":
    main()
