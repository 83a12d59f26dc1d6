"""Worker processes: what they return, how they fail, and that nothing outlives its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sacmil.parallel import WorkerPool, run_each

TASKS = """
import os, signal, sys, time
import numpy as np
from sacmil.errors import SlideError

def double(x): return 2 * x
def die(x): os.kill(os.getpid(), signal.SIGSEGV)
def leave(x): os._exit(3)
def hang(x): time.sleep(60)
def reject(x): raise SlideError(f"{x}: not a slide")
def stumble(x): raise KeyError(x)
def greedy(x): return np.zeros(2**45, np.uint8)
def disk(x): raise OSError(28, "No space left on device", "bag.h5")
def chatter(x):
    print("noise"); os.write(1, b"more noise"); sys.stderr.write("and more")
    return x
def large(x):
    return np.arange(x, dtype=np.int64).reshape(2, -1), {"name": "n", "flags": np.ones(3, bool)}
def identity(x): return os.getpid()
def mixed(x): return {"die": die, "hang": hang, "double": double}[x[0]](x[1])
def write_and_wait(path):
    open(path, "w").write(str(os.getpid()))
    time.sleep(60)
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "sacmil_test_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    import sacmil_test_tasks

    yield sacmil_test_tasks
    del sys.modules["sacmil_test_tasks"]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def gone(pid: int, within_s: float = 10) -> bool:
    end = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


def test_every_item_comes_back_once_with_its_value(tasks) -> None:
    outcomes = list(run_each(tasks.double, range(20), workers=2))
    assert {o.key: o.value for o in outcomes} == {i: 2 * i for i in range(20)}
    assert all(o.failure is None for o in outcomes)


def test_arrays_travel_unchanged(tasks) -> None:
    (outcome,) = run_each(tasks.large, [1_000_000])
    array, extra = outcome.value
    assert np.array_equal(array, np.arange(1_000_000).reshape(2, -1))
    assert array.flags.writeable
    assert extra["flags"].all()


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("die", "died (SIGSEGV)"),
        ("leave", "exit code 3"),
        ("hang", "took longer than 0.5 s"),
        ("reject", "0: not a slide"),
        ("stumble", "a fault of sacmil, please report it: KeyError"),
        ("greedy", "more memory than"),
        ("disk", "bag.h5: No space left on device"),
    ],
)
def test_a_failure_has_its_reason_and_the_next_item_is_served(tasks, task: str, words: str) -> None:
    with WorkerPool(1) as workers:
        workers.submit("bad", getattr(tasks, task), 0, limit_s=0.5 if task == "hang" else 30)
        workers.submit("good", tasks.double, 21, limit_s=30)
        bad, good = workers.next_outcome(), workers.next_outcome()
    assert bad.key == "bad"
    assert words in bad.failure
    assert good == ("good", 42, None)


@pytest.mark.skipif(os.name == "nt", reason="ulimit is POSIX")
def test_workers_start_under_a_smaller_limit_of_the_shell() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))\n"
        "from sacmil.parallel import run_each\n"
        "from operator import neg\n"
        "print([outcome.value for outcome in run_each(neg, [1])])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[-1]\n"


def test_what_a_library_prints_does_not_reach_the_answers(tasks, capfd) -> None:
    (outcome,) = run_each(tasks.chatter, ["quiet"])
    assert outcome.value == "quiet"
    assert capfd.readouterr() == ("", "")


def test_waiting_for_an_outcome_can_end_early(tasks) -> None:
    with WorkerPool(1) as workers:
        workers.submit("slow", tasks.hang, 0, limit_s=60)
        start = time.monotonic()
        assert workers.next_outcome(timeout_s=0.2) is None
        assert time.monotonic() - start < 5
        assert workers.pending_count == 1
    assert WorkerPool(1).next_outcome() is None, (
        "with nothing under way there is nothing to wait for"
    )


def test_a_process_serves_many_tasks(tasks) -> None:
    pids = {outcome.value for outcome in run_each(tasks.identity, range(10), workers=2)}
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids
    assert all(gone(pid) for pid in pids), "leaving the block ends the processes"


def test_an_answer_given_in_time_counts_though_it_is_read_late(tasks) -> None:
    with WorkerPool(1) as workers:
        workers.submit("a", tasks.double, 1, limit_s=1.0)
        time.sleep(2.0)
        workers.submit("b", tasks.double, 2, limit_s=30)
        assert workers.next_outcome() == ("a", 2, None)
        assert workers.next_outcome() == ("b", 4, None)


def test_many_deaths_in_a_row_lose_nothing(tasks) -> None:
    items = [("die", i) if i % 3 == 0 else ("double", i) for i in range(12)]
    outcomes = {o.key: o for o in run_each(tasks.mixed, items, workers=2)}
    assert len(outcomes) == 12
    for i, outcome in outcomes.items():
        assert (outcome.failure is not None) if i % 3 == 0 else outcome.value == 2 * i


@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
def test_a_killed_parent_takes_its_workers_along(tasks, tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import sacmil_test_tasks as t\n"
        "from sacmil.parallel import run_each\n"
        "list(run_each(t.write_and_wait, [sys.argv[2]]))"
    )
    mark = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(mark)])
    end = time.monotonic() + 30
    while not (mark.exists() and mark.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    assert gone(int(mark.read_text())), "a worker asleep in its task outlived its parent"


def test_a_script_without_a_main_guard_may_use_workers(tasks, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import sacmil_test_tasks as t\nfrom sacmil.parallel import run_each\n"
        "print([o.value for o in run_each(t.double, [1, 2])])\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[2, 4]\n"


def test_workers_run_no_code_from_the_working_directory(tmp_path: Path) -> None:
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    for name in ("queue", "numpy"):
        (downloads / f"{name}.py").write_text("open('was-run', 'w')")
    script = (
        "import sys; sys.path += ['', sys.argv[1]]\n"
        "from sacmil.parallel import run_each\n"
        "from os.path import basename\n"
        "print([outcome.value for outcome in run_each(basename, ['a/b'])])\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, str(downloads)],
        cwd=downloads,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "['b']\n"
    assert not (downloads / "was-run").exists()
