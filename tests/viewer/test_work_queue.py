"""Work is bounded, and none is begun for who has gone."""

from __future__ import annotations

import asyncio
import threading

import pytest

from sacmil.viewer.work_queue import ClientGoneError, QueueFullError, WorkQueue


async def there() -> bool:
    return False


async def gone() -> bool:
    return True


def test_what_goes_beyond_the_bound_is_refused_and_room_comes_back() -> None:
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
    most: list[int] = []

    def work() -> None:
        with lock:
            working.append(1)
            most.append(len(working))
        threading.Event().wait(0.001)
        with lock:
            working.pop()

    async def scenario() -> None:
        await asyncio.gather(*[queue.run(work, there) for _ in range(200)])

    asyncio.run(scenario())
    queue.close()
    assert len(most) == 200
    assert max(most) <= 2


def test_work_nobody_waits_for_is_not_begun() -> None:
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


def test_what_goes_wrong_in_the_work_is_told() -> None:
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
