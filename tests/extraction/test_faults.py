"""Extraction that is killed or reads damaged files leaves complete files and a reason each."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from exhaustive import choose_count
from ray_tasks import wait_for

from sacmil.cli.main import cli
from sacmil.formats.native import read

OPTIONS = ["--patch-size", "64", "--batch-size", "4", "--workers", "1", "--threads", "1"]


def start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sacmil", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"SACMIL_TRACEBACK": ""},
    )


def run_here(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [*map(str, words)], catch_exceptions=False)
    return result.exit_code, result.output


def bags(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob("*/features_*/*.h5"))}


def assert_all_files_are_complete(out: Path) -> None:
    for path in out.glob("*/features_*/*.h5"):
        read(path)
    for path in out.rglob("*.csv"):
        assert path.read_text().endswith("\n")


def kill_and_complete(
    cohort: Path, tmp_path: Path, encoder: str, waits: Iterable[Callable[[Path], None]]
) -> None:
    words = ["extract", cohort, "--encoder", encoder, *OPTIONS]
    out = tmp_path / "killed"
    for wait in waits:
        process = start(*words, "--out", out)
        wait(out)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert_all_files_are_complete(out)
    for folder in (tmp_path / "uninterrupted", out):
        code, output = run_here(*words, "--out", folder)
        assert code == 0, output
    assert bags(out) == bags(tmp_path / "uninterrupted")
    assert not list(out.rglob("*.partial")), "partial files of a killed run are removed"


@pytest.mark.slow
@pytest.mark.usefixtures("inline_workers")
def test_killed_once_it_completes_with_equal_bags(cohort, tmp_path, encoder) -> None:
    def wait_for_an_outline(out: Path) -> None:
        assert wait_for(lambda: list(out.glob("tissue/*.geojson")))

    kill_and_complete(cohort, tmp_path, encoder, [wait_for_an_outline])


@pytest.mark.slow
@pytest.mark.usefixtures("inline_workers")
def test_killed_many_times_it_completes_with_equal_bags(cohort, tmp_path, encoder) -> None:
    rng, started = random.Random(0), time.monotonic()
    start("extract", cohort, "--encoder", encoder, *OPTIONS, "--out", tmp_path / "a").communicate()
    duration = time.monotonic() - started

    def wait_at_random(out: Path) -> None:
        time.sleep(rng.uniform(0.2, 1.1) * duration)

    kill_and_complete(cohort, tmp_path, encoder, [wait_at_random] * choose_count(30, sample=5))


def mutate(content: bytes, rng: random.Random) -> bytes:
    """A file cut short, emptied, or with bits and stretches changed."""
    kind = rng.choice(["cut", "bits", "stretch", "head", "empty", "noise"])
    data = bytearray(content)
    if kind == "cut":
        return content[: rng.randrange(len(content))]
    if kind == "empty":
        return b""
    if kind == "noise":
        return rng.randbytes(rng.randrange(1, 5000))
    if kind == "stretch":
        start = rng.randrange(len(data))
        data[start : start + 500] = rng.randbytes(500)
    for _ in range(rng.randrange(1, 20) if kind in ("bits", "head") else 0):
        index = rng.randrange(min(len(data), 400) if kind == "head" else len(data))
        data[index] ^= 1 << rng.randrange(8)
    return bytes(data)


def extract_mutated(cohort: Path, tmp_path: Path, encoder: str, count: int) -> None:
    folder, rng = tmp_path / "mutated", random.Random(1)
    folder.mkdir()
    sources = sorted(cohort.iterdir())
    for number in range(count):
        suffix = rng.choice([".tif", ".svs", ".tiff", ".png", ".ndpi"])
        content = rng.choice(sources).read_bytes()
        (folder / f"file-{number}{suffix}").write_bytes(mutate(content, rng))
    (folder / "loop.svs").symlink_to("loop.svs")
    words = ["extract", folder, "--encoder", encoder, "--out", tmp_path / "out", *OPTIONS]
    limits = ["--slide-limit", "60", "--tile-limit", "20"]
    code, output = run_here(*words, *limits)
    assert code in (0, 1), output
    assert "Traceback" not in output
    assert "fault of sacmil" not in output
    with (tmp_path / "out" / "extraction.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == count + 1
    assert all(bool(row["reason"]) == (row["status"] == "failed") for row in rows)
    assert sum(row["status"] == "failed" for row in rows) > count / 3
    assert_all_files_are_complete(tmp_path / "out")


def test_ten_mutated_files_have_a_reason_each(cohort, tmp_path, encoder) -> None:
    extract_mutated(cohort, tmp_path, encoder, 10)


@pytest.mark.slow
def test_many_mutated_files_have_a_reason_each(cohort, tmp_path, encoder) -> None:
    extract_mutated(cohort, tmp_path, encoder, choose_count(300, sample=60))


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails as a full disk does, in the middle of writing: files may have 4,000 bytes."""
    # Python would keep the compiled code of modules cut at the limit, for every later import.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files by ulimit")
@pytest.mark.usefixtures("inline_workers", "small_disk")
def test_a_full_disk_is_a_reason_and_leaves_no_half_file(cohort, tmp_path, encoder) -> None:
    words = ["extract", cohort, "--encoder", encoder]
    code, output = run_here(*words, "--out", tmp_path / "out", *OPTIONS)
    assert code == 1, output
    assert "File too large" in output
    assert not list((tmp_path / "out").glob("*/features_*/*.h5"))
    assert not list((tmp_path / "out").rglob("*.partial"))
