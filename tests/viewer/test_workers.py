"""A slide that kills its reading process is reported; other slides are still read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deadly_reading import devour, die, hang, name, process

from sacmil.errors import SlideError
from sacmil.viewer.allowed_paths import AllowedPath
from sacmil.viewer.workers import ClientGoneError, QueueFullError, SlideProcesses, WorkQueue


def make_path(number: int) -> AllowedPath:
    return AllowedPath(Path(f"{number}.tif"), number, 0, 1)


@pytest.fixture
def processes() -> Iterator[SlideProcesses]:
    made = SlideProcesses(2, limit_s=20)
    yield made
    made.close()


def test_a_slide_that_kills_its_process_is_reported_and_not_opened_again(processes) -> None:
    with pytest.raises(SlideError, match=r"1\.tif: cannot be shown, .*died \(SIGABRT\)"):
        processes.call(die, make_path(1))
    with pytest.raises(SlideError, match="SIGABRT"):
        processes.call(name, make_path(1))
    assert processes.call(name, make_path(2)) == "2.tif"
    rewritten = make_path(1)._replace(modified_ns=5)
    assert processes.call(name, rewritten) == "1.tif"


def test_a_slide_that_needs_too_much_memory_is_rejected(processes) -> None:
    with pytest.raises(SlideError, match="more memory than a worker process may have"):
        processes.call(devour, make_path(1))
    assert processes.call(name, make_path(2)) == "2.tif"


def test_a_slide_that_hangs_is_interrupted() -> None:
    processes = SlideProcesses(1, limit_s=0.5)
    with pytest.raises(SlideError, match=r"took longer than 0\.5 s"):
        processes.call(hang, make_path(1))
    processes.close()


def test_few_processes_serve_many_threads(processes) -> None:
    with ThreadPoolExecutor(16) as threads:
        readers = list(threads.map(lambda n: processes.call(process, make_path(n)), range(60)))
    assert len(set(readers)) == 2


def test_interrupting_ends_what_is_under_way() -> None:
    processes = SlideProcesses(1, limit_s=600)
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(processes.call, hang, make_path(1))
        while not reading.done():  # the process may not have been started yet
            processes.interrupt()
            threading.Event().wait(0.05)
        with pytest.raises(SlideError, match="SIGKILL"):
            reading.result()
    processes.close()


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
