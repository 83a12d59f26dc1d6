"""Messages between a process and the child it started: pickles, their large arrays beside them.

Where the system has memory without a file (Linux), arrays travel through such a block: a pipe
hands over 64 KiB at a time, and each time the reading thread has to wait for its turn.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from io import BufferedReader
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

_INTEGER_BYTES = 8
_MIN_SHARED_BYTES = 2**16

ByteArray = npt.NDArray[np.uint8]
Allocator = Callable[[int], ByteArray]
"""Gives so many bytes of memory."""


class SharedMemory:
    """A block both processes see; holds one message at a time, and grows with it.

    Args:
        descriptor: of the block.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._mapped: mmap.mmap | None = None

    @classmethod
    def create(cls) -> SharedMemory | None:
        """A new block, where the system has such."""
        make = getattr(os, "memfd_create", None)
        return cls(make("sacmil")) if make else None

    def write(self, parts: Iterable[memoryview], size: int) -> None:
        """Put parts one after the other."""
        if size > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, size)
        place, start = self._view(size), 0
        for part in parts:
            place[start : start + part.nbytes] = np.frombuffer(part, np.uint8)
            start += part.nbytes

    def read(self, sizes: Sequence[int], allocate: Allocator) -> list[ByteArray]:
        """Copies of parts of these sizes."""
        place = self._view(sum(sizes))
        ends = np.cumsum(sizes).tolist()
        parts = []
        for size, end in zip(sizes, ends, strict=True):
            part = allocate(size) if size >= _MIN_SHARED_BYTES else allocate_bytes(size)
            part[:] = place[end - size : end]
            parts.append(part)
        return parts

    def close(self) -> None:
        """Let it go."""
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
    parts = [buffer.raw() for buffer in buffers]
    sizes = [part.nbytes for part in parts]
    through_memory = shared is not None and sum(sizes) >= _MIN_SHARED_BYTES
    if shared is not None and through_memory:
        shared.write(parts, sum(sizes))  # before the other side hears of it
        parts = []
    numbers = [int(through_memory), len(head), len(sizes), *sizes]
    stream.write(b"".join(number.to_bytes(_INTEGER_BYTES, "little") for number in numbers))
    stream.write(head)
    for part in parts:
        stream.write(part)
    stream.flush()


def allocate_bytes(size: int) -> ByteArray:
    """Memory of this process."""
    return np.empty(size, np.uint8)


def receive(
    stream: BufferedReader, shared: SharedMemory | None = None, allocate: Allocator = allocate_bytes
) -> Any:
    """Read one message; EOFError where the other side has gone.

    Args:
        stream: where it comes from.
        shared: where its large arrays lie.
        allocate: makes the memory they are copied to.
    """
    through_memory, head_size, count = (_read_integer(stream) for _ in range(3))
    sizes = [_read_integer(stream) for _ in range(count)]
    head = _read_exactly(stream, head_size)
    if through_memory and shared is not None:
        buffers: Sequence[Any] = shared.read(sizes, allocate)
    else:
        buffers = [_read_exactly(stream, size) for size in sizes]
    return pickle.loads(head, buffers=buffers)  # noqa: S301 - written by our own child or parent


def _read_integer(stream: BufferedReader) -> int:
    return int.from_bytes(_read_exactly(stream, _INTEGER_BYTES), "little")


def _read_exactly(stream: BufferedReader, size: int) -> bytearray:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        got = stream.readinto(view[filled:])
        if not got:
            raise EOFError
        filled += got
    return data
