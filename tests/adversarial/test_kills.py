"""Commands killed at any step on the file system: run again, they end as if never killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from exhaustive import choose_count
from kinds import CONVERT, ENCODER, EXTRACT, PREDICT, TRAIN, make_material
from trial import copy_material, run_command

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kills a forked process")

COMMANDS = (
    CONVERT + "trident",
    PREDICT + "model",
    TRAIN % "labels.csv",
    "crossval {d}/labels.csv --bags {d}/bags --out {d}/out --models mean_pool -o epochs=1 "
    "--folds 2",
    "export {d}/model --out {d}/out",
    "split {d}/labels.csv --folds 2 --out {d}/out",
    "heatmap {d}/bags/slide-0-0.h5 --model {d}/model --out {d}/out",
    EXTRACT + ENCODER,
)
LIMIT_S = 600
NEEDS = ("bags", "model", "labels.csv", "trident", "slides", "encoder.onnx")
STEPS = frozenset({"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate"})
VOLATILE = ("predictions.csv", "predictions.json", ".json", ".csv", ".lock")
"""Files that hold times or paths, and so may differ between two runs."""


def run_until(line: str, folder: str, last: int, steps: Any) -> None:
    """Run a command in this process and die at its step ``last``; -1 lets it live."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        is_write = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (is_write or event in STEPS) and str(arguments[0]).startswith(folder):
            steps.value += 1
            if steps.value == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    ended = run_command(line)
    if ended.code:
        print(ended.output)  # noqa: T201
    os._exit(ended.code)


def start(line: str, folder: Path, last: int = -1) -> tuple[int, int]:
    """The exit code of a command, and how many steps it took; forked, for speed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sacmil.cli.train", "sacmil.training.train", "trial"])
    steps = context.Value("i", 0)
    arguments = (line.format(d=folder), str(folder), last, steps)
    process = context.Process(target=run_until, args=arguments)
    process.start()
    process.join(LIMIT_S)
    if process.exitcode is None:
        process.kill()
        pytest.fail(f"{line}: takes longer than {LIMIT_S} s")
    return process.exitcode, steps.value


def kill_and_complete(seeds: Iterable[int], tmp_path: Path) -> None:
    """Kill a command per seed, run it again, and compare with a run that was not killed."""
    material = make_material(tmp_path / "material", run_command, full=False)
    known: dict[str, tuple[int, dict[str, bytes]]] = {}
    for seed in seeds:
        line = COMMANDS[seed % len(COMMANDS)]
        folder = tmp_path / "case"
        if line not in known:
            copy_material(material, folder, NEEDS)
            code, steps = start(line, folder)
            assert code == 0, line
            known[line] = steps, read_output(folder)
        copy_material(material, folder, NEEDS)
        last = Random(seed).randint(1, known[line][0])
        where = f"{line}, killed at step {last} of {known[line][0]} (seed {seed})"
        assert start(line, folder, last)[0] == -signal.SIGKILL, where
        assert start(line, folder)[0] == 0, f"{where}: cannot be run again"
        assert read_output(folder) == known[line][1], f"{where}: other files than without"


def read_output(folder: Path) -> dict[str, bytes]:
    """Files by name, with the content of those that hold no times; none may be left over."""
    files = [file for file in folder.rglob("out*/**/*") if file.is_file()]
    files += [file for file in folder.iterdir() if file.name.startswith((".out", "out."))]
    return {
        str(file.relative_to(folder)): b"" if file.name.endswith(VOLATILE) else file.read_bytes()
        for file in files
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_killed_many_times_commands_complete(tmp_path) -> None:
    kill_and_complete(range(choose_count(30, sample=4)), tmp_path)
