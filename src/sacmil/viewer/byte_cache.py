"""Answers that were made already, as many of the latest used as fit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

MOST_BYTES = 96 * 2**20


class ByteCache:
    """Bytes by key; for any number of threads.

    Args:
        most_bytes: of all that is kept; what is larger is made each time.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = self._free = most_bytes
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._making: dict[Hashable, Future[bytes]] = {}
        self._lock = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        """How much is kept now."""
        return self._most - self._free

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """What is kept under a key, or made now; threads that need it meanwhile share it."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            shared = self._making.get(key)
            if shared is None:
                made = self._making[key] = Future()
        if shared is not None:
            return shared.result()
        return self._make(key, make, made)

    def _make(self, key: Hashable, make: Callable[[], bytes], made: Future[bytes]) -> bytes:
        try:
            made.set_result(make())
            self._keep(key, made.result())
        except BaseException as error:
            made.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._making[key]
        return made.result()

    def _keep(self, key: Hashable, made: bytes) -> None:
        with self._lock:
            if len(made) > self._most or key in self._kept:
                return
            self._kept[key] = made
            self._free -= len(made)
            while self._free < 0:
                self._free += len(self._kept.popitem(last=False)[1])
