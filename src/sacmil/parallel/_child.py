"""The program of a worker process: it runs tasks of its parent, one at a time.

It ends when the parent ends. Messages use its standard input and output, so output that libraries
print is discarded. A message is a pickle; large arrays are sent separately, on Linux through
anonymous shared memory. A pipe transfers 64 KiB at a time, and the reading thread has to wait for
its turn each time.
"""

from __future__ import annotations

import importlib
import mmap
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from io import BufferedReader, BufferedWriter
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from sacmil.errors import SacMILError, explain_os_error

_MIN_SHARED_BYTES = 2**16

ByteArray = npt.NDArray[np.uint8]
Allocator = Callable[[int], ByteArray]
"""Returns memory of a number of bytes."""


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
    module, _, name = function.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(*arguments), None
    except SacMILError as error:
        return None, str(error)
    except MemoryError:
        return None, "needs more memory than a worker process may have"
    except OSError as error:
        return None, explain_os_error(error, "a file")
    except Exception as error:
        return None, f"a fault of sacmil, please report it: {type(error).__name__}: {error}"


class SharedMemory:
    """Memory that both processes map; it holds one message at a time, and grows with it.

    Args:
        descriptor: file descriptor of the memory.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._mapped: mmap.mmap | None = None

    @classmethod
    def create(cls) -> SharedMemory | None:
        """Return new shared memory; None if the system has none."""
        make = getattr(os, "memfd_create", None)
        return cls(make("sacmil")) if make else None

    def write(self, buffers: Iterable[memoryview], size: int) -> None:
        """Write buffers one after the other, ``size`` bytes in total."""
        if size > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, size)
        memory, start = self._view(size), 0
        for buffer in buffers:
            memory[start : start + buffer.nbytes] = np.frombuffer(buffer, np.uint8)
            start += buffer.nbytes

    def read(self, sizes: Sequence[int], allocate: Allocator) -> list[ByteArray]:
        """Return copies of the buffers of these sizes."""
        memory = self._view(sum(sizes))
        ends = np.cumsum(sizes).tolist()
        copies = []
        for size, end in zip(sizes, ends, strict=True):
            copy = allocate(size) if size >= _MIN_SHARED_BYTES else allocate_bytes(size)
            copy[:] = memory[end - size : end]
            copies.append(copy)
        return copies

    def close(self) -> None:
        """Release the memory."""
        self._mapped = None
        os.close(self.descriptor)

    def _view(self, size: int) -> Any:
        if self._mapped is None or len(self._mapped) < size:
            self._mapped = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return np.frombuffer(self._mapped, np.uint8, size)


def send(stream: BinaryIO, message: Any, shared: SharedMemory | None = None) -> None:
    """Write one message."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    sizes = [view.nbytes for view in raw]
    through_memory = shared is not None and sum(sizes) >= _MIN_SHARED_BYTES
    if shared is not None and through_memory:
        shared.write(raw, sum(sizes))  # before the message that announces it
        raw = []
    pickle.dump((through_memory, head, sizes), stream)
    for view in raw:
        stream.write(view)
    stream.flush()


def allocate_bytes(size: int) -> ByteArray:
    """Allocate memory of this process."""
    return np.empty(size, np.uint8)


def receive(
    stream: BufferedReader, shared: SharedMemory | None = None, allocate: Allocator = allocate_bytes
) -> Any:
    """Read one message; raise EOFError if the other process has ended.

    Args:
        stream: the pipe to read from.
        shared: the memory of large arrays.
        allocate: returns the memory they are copied to.
    """
    through_memory, head, sizes = pickle.load(stream)  # noqa: S301 - of our own child or parent
    if through_memory and shared is not None:
        buffers: Sequence[Any] = shared.read(sizes, allocate)
    else:
        buffers = [_read_exactly(stream, size) for size in sizes]
    return pickle.loads(head, buffers=buffers)  # noqa: S301 - so is this


def _read_exactly(stream: BufferedReader, size: int) -> bytearray:
    data = bytearray(size)  # not bytes: arrays over them can be written to
    if stream.readinto(data) < size:
        raise EOFError
    return data
