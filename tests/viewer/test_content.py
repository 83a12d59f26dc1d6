"""The cache keeps what was used last, within its bytes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacmil.viewer.content import ByteCache


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60))), st.integers(0, 100))
def test_it_stays_within_its_bytes_and_returns_what_was_made(requests, max_bytes: int) -> None:
    cache = ByteCache(max_bytes)
    sizes: dict[int, int] = {}
    for key, size in requests:
        size = sizes.setdefault(key, size)
        made = bytes([key]) * size
        assert cache.get(key, lambda made=made: made) == made
        assert 0 <= cache.used_bytes <= max_bytes


def test_the_latest_used_is_kept() -> None:
    cache, made = ByteCache(3), []

    def get(key: str) -> None:
        cache.get(key, lambda: made.append(key) or b"1")

    for key in "abcadab":
        get(key)
    assert "".join(made) == "abcdb"


def test_many_threads_leave_the_count_right() -> None:
    cache = ByteCache(5000)
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(lambda n: cache.get(n % 300, lambda: bytes(100)), range(5000)))
    assert cache.used_bytes == 5000


def test_bytes_that_many_threads_need_are_made_once() -> None:
    cache, barrier, made = ByteCache(100), threading.Barrier(8), []

    def make() -> bytes:
        made.append(threading.Event().wait(0.1))  # so that the others come meanwhile
        return b"outline"

    def get() -> bytes:
        barrier.wait()
        return cache.get("key", make)

    with ThreadPoolExecutor(8) as executor:
        found = [executor.submit(get) for _ in range(8)]
        assert {each.result() for each in found} == {b"outline"}
    assert len(made) == 1


def test_a_failure_is_not_kept() -> None:
    cache = ByteCache(100)

    def fail() -> bytes:
        raise OSError("gone")

    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            cache.get("key", fail)
    assert cache.get("key", lambda: b"there") == b"there"
