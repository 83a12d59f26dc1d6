"""A cache of response bodies with a limit on its size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

MAX_BYTES = 96 * 2**20


class ByteCache:
    """A thread-safe cache of bytes that drops the least recently used.

    Args:
        max_bytes: of all entries together; larger values are not stored.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = self._free_bytes = max_bytes
        self._stored: OrderedDict[Hashable, bytes] = OrderedDict()
        self._making: dict[Hashable, Future[bytes]] = {}
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Size of all entries."""
        return self._max_bytes - self._free_bytes

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return the entry of a key, made now if missing; threads that need it share one call."""
        with self._lock:
            if key in self._stored:
                self._stored.move_to_end(key)
                return self._stored[key]
            shared = self._making.get(key)
            if shared is None:
                made = self._making[key] = Future()
        if shared is not None:
            return shared.result()
        return self._make(key, make, made)

    def _make(self, key: Hashable, make: Callable[[], bytes], made: Future[bytes]) -> bytes:
        try:
            made.set_result(make())
            self._store(key, made.result())
        except BaseException as error:
            made.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._making[key]
        return made.result()

    def _store(self, key: Hashable, made: bytes) -> None:
        with self._lock:
            if len(made) > self._max_bytes or key in self._stored:
                return
            self._stored[key] = made
            self._free_bytes -= len(made)
            while self._free_bytes < 0:
                self._free_bytes += len(self._stored.popitem(last=False)[1])
