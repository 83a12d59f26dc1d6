"""What kills a process that reads a slide is told of that slide, and nothing else suffers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deadly_reading import devour, die, hang, name, process

from sacmil.errors import SlideError
from sacmil.viewer.allowed_paths import AllowedPath
from sacmil.viewer.slide_processes import SlideProcesses


def place(number: int) -> AllowedPath:
    return AllowedPath(Path(f"{number}.tif"), number, 0, 1)


@pytest.fixture
def processes() -> Iterator[SlideProcesses]:
    made = SlideProcesses(2, limit_s=20)
    yield made
    made.close()


def test_a_deadly_slide_is_told_and_not_opened_again(processes) -> None:
    with pytest.raises(SlideError, match=r"1\.tif: cannot be shown, .*died \(SIGABRT\)"):
        processes.call(die, place(1))
    with pytest.raises(SlideError, match="SIGABRT"):
        processes.call(name, place(1))
    assert processes.call(name, place(2)) == "2.tif"
    anew = place(1)._replace(modified_ns=5)
    assert processes.call(name, anew) == "1.tif"


def test_a_slide_that_wants_all_memory_gets_none(processes) -> None:
    with pytest.raises(SlideError, match="more memory than a worker process may have"):
        processes.call(devour, place(1))
    assert processes.call(name, place(2)) == "2.tif"


def test_a_slide_that_hangs_is_given_up() -> None:
    processes = SlideProcesses(1, limit_s=0.5)
    with pytest.raises(SlideError, match=r"took longer than 0\.5 s"):
        processes.call(hang, place(1))
    processes.close()


def test_however_many_ask_few_processes_read(processes) -> None:
    with ThreadPoolExecutor(16) as threads:
        readers = list(threads.map(lambda n: processes.call(process, place(n)), range(60)))
    assert len(set(readers)) == 2


def test_interrupting_ends_what_is_under_way() -> None:
    processes = SlideProcesses(1, limit_s=600)
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(processes.call, hang, place(1))
        while not reading.done():  # the process may not have been started yet
            processes.interrupt()
            threading.Event().wait(0.05)
        with pytest.raises(SlideError, match="SIGKILL"):
            reading.result()
    processes.close()
