"""A slide that kills its reading process is reported; other slides are still read."""

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
