"""Work is bounded, and none is started for disconnected clients."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sacmil.viewer.work_queue import ClientGoneError, QueueFullError, WorkQueue


async def there() -> bool:
    return False


async def gone() -> bool:
    return True


def test_work_beyond_the_limit_is_rejected_until_other_work_ends() -> None:
    queue, go_on = WorkQueue(1, max_waiting=5), threading.Event()

    async def scenario() -> None:
        waiting = [asyncio.create_task(queue.run(go_on.wait, there)) for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await queue.run(lambda: 1, there)
        go_on.set()
        assert await asyncio.gather(*waiting) == [True] * 5
        assert await queue.run(lambda: 1, there) == 1

    asyncio.run(scenario())
    queue.close()


def test_no_more_than_its_threads_work_at_once() -> None:
    queue, lock = WorkQueue(2), threading.Lock()
    working: list[int] = []
    counts: list[int] = []

    def work() -> None:
        with lock:
            working.append(1)
            counts.append(len(working))
        threading.Event().wait(0.001)
        with lock:
            working.pop()

    async def scenario() -> None:
        await asyncio.gather(*[queue.run(work, there) for _ in range(200)])

    asyncio.run(scenario())
    queue.close()
    assert len(counts) == 200
    assert max(counts) <= 2


def test_work_for_a_disconnected_client_is_not_started() -> None:
    queue, go_on, done = WorkQueue(1), threading.Event(), []

    async def scenario() -> None:
        first = asyncio.create_task(queue.run(go_on.wait, there))
        await asyncio.sleep(0)
        with pytest.raises(ClientGoneError):
            await queue.run(lambda: done.append(1), gone)
        go_on.set()
        await first

    asyncio.run(scenario())
    queue.close()
    assert done == []


def test_an_error_in_the_work_reaches_the_caller() -> None:
    queue = WorkQueue(1)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(queue.run(lambda: 1 // 0, there))
    queue.close()


def test_a_stopped_queue_begins_nothing_more() -> None:
    queue, go_on, done = WorkQueue(1), threading.Event(), []

    async def scenario() -> None:
        first = asyncio.create_task(queue.run(go_on.wait, there))
        second = asyncio.create_task(queue.run(lambda: done.append("second"), there))
        await asyncio.sleep(0)
        queue.stop()
        go_on.set()
        assert await first
        await asyncio.wait({second})
        assert second.cancelled()

    asyncio.run(scenario())
    queue.close()
    assert done == []
