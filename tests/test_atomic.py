"""A reader finds a whole file, an older whole file or none, whenever the writer dies."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sacmil import atomic
from sacmil.atomic import atomic_directory, atomic_write, remove_partial_files

posix_only = pytest.mark.skipif(os.name == "nt", reason="kills a forked process")

# A forked writer is killed at its n-th step on the file system, for every n until it survives.
# Audit events come before each step, so all states between two steps are seen.
KILL_AT_EVERY_STEP = """
import os, signal, sys
from pathlib import Path

def write_file(path):
    from sacmil.atomic import atomic_write
    with atomic_write(path) as partial:
        partial.write_text("new")

def write_folder(path):
    from sacmil.atomic import atomic_directory
    with atomic_directory(path) as partial:
        (partial / "a").write_text("new")
        (partial / "b").write_text("new")

def state(path):
    if path.is_dir():
        return ",".join(f"{f.name}={f.read_text()}" for f in sorted(path.iterdir()))
    return path.read_text() if path.exists() else "none"

def watched(write, path, step):
    seen = 0
    def hook(event, _):
        nonlocal seen
        if event.split(".")[0] in ("open", "os", "shutil", "ctypes", "pathlib"):
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    write(path)
    os._exit(0)

kind, older, folder = sys.argv[1:]
write = {"file": write_file, "folder": write_folder}[kind]
import sacmil.atomic
for step in range(1, 200):
    path = Path(folder) / str(step) / "final"
    path.parent.mkdir()
    if older == "older" and kind == "file":
        path.write_text("old")
    elif older == "older":
        path.mkdir()
        (path / "a").write_text("old")
        (path / "b").write_text("old")
    child = os.fork()
    if child == 0:
        watched(write, path, step)
    _, status = os.waitpid(child, 0)
    print(state(path))
    if status == 0:
        break
"""


@posix_only
@pytest.mark.parametrize("older", ["older", "none"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_writer_killed_at_any_step_leaves_the_old_or_the_new_and_no_mixture(
    tmp_path: Path, kind: str, older: str
) -> None:
    if kind == "folder" and older == "older" and not sys.platform.startswith("linux"):
        pytest.skip("only Linux swaps two folders in one step")
    command = [sys.executable, "-c", KILL_AT_EVERY_STEP, kind, older, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    states = done.stdout.split()
    whole = {"file": "{0}", "folder": "a={0},b={0}"}[kind]
    before = whole.format("old") if older == "older" else "none"
    assert set(states) == {before, whole.format("new")}
    assert states == sorted(states, key=[before, whole.format("new")].index)
    assert states.count(before) > 2


def fill_file(partial: Path) -> None:
    partial.write_text("half")


def fill_folder(partial: Path) -> None:
    (partial / "a").write_text("half")


both = pytest.mark.parametrize(
    ("whole", "fill"), [(atomic_write, fill_file), (atomic_directory, fill_folder)]
)


@both
def test_an_error_inside_the_block_leaves_nothing(
    tmp_path: Path, whole: Any, fill: Callable[[Path], None]
) -> None:
    def write() -> None:
        with whole(tmp_path / "final") as partial:
            fill(partial)
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write()
    assert list(tmp_path.iterdir()) == []


@both
def test_an_error_while_forcing_to_disk_leaves_the_older_one(
    tmp_path: Path,
    whole: Any,
    fill: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    final = tmp_path / "final"
    with whole(final) as partial:
        fill(partial)
    before = sorted(tmp_path.rglob("*"))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def write() -> None:
        with whole(final) as partial:
            fill(partial)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write()
    assert sorted(tmp_path.rglob("*")) == before


@both
def test_what_is_renamed_was_forced_to_disk_before(
    tmp_path: Path,
    whole: Any,
    fill: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[str] = []
    fsync, rename, replace = os.fsync, Path.rename, Path.replace

    def note(name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: (steps.append(name), step(*arguments))[1]

    monkeypatch.setattr(os, "fsync", note("fsync", fsync))
    monkeypatch.setattr(Path, "rename", note("rename", rename))
    monkeypatch.setattr(Path, "replace", note("rename", replace))
    with whole(tmp_path / "final") as partial:
        fill(partial)
    assert steps == ["fsync", "rename", "fsync"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_replaces_an_older_one_wholly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(atomic, "_exchange_paths", lambda one, other: False)
    final = tmp_path / "final"
    for name in ("old", "new"):
        with atomic_directory(final) as partial:
            (partial / name).write_text(name)
    assert [file.name for file in tmp_path.iterdir()] == ["final"]
    assert [file.name for file in final.iterdir()] == ["new"]


def test_where_two_renames_are_needed_a_failing_second_takes_back_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = tmp_path / "final"
    final.mkdir()
    (final / "old").write_text("old")
    rename = Path.rename
    calls: list[Path] = []

    def second_fails(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    def write() -> None:
        with atomic_directory(final) as partial:
            (partial / "new").write_text("new")

    monkeypatch.setattr(atomic, "_exchange_paths", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", second_fails)
    with pytest.raises(OSError, match="Input/output"):
        write()
    assert [str(file.relative_to(tmp_path)) for file in sorted(tmp_path.rglob("*"))] == [
        "final",
        "final/old",
    ]


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_directory(tmp_path / "link") as partial:
        (partial / "new").write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "new").read_text() == "new"
    assert len(list(tmp_path.iterdir())) == 2


def test_missing_folders_are_made(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a" / "b" / "c") as partial:
        partial.write_text("x")
    assert (tmp_path / "a" / "b" / "c").read_text() == "x"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_file_gets_the_permissions_of_any_other_file(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "ours") as partial:
        partial.write_text("x")
    (tmp_path / "other").write_text("x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_the_longest_name_there_is_can_be_written(tmp_path: Path) -> None:
    for name in ("x" * 255, "ü" * 127):
        with atomic_write(tmp_path / name) as partial:
            partial.write_text("new")
        assert (tmp_path / name).read_text() == "new"


def test_an_error_of_the_disk_says_which_file(tmp_path: Path) -> None:
    def fill(disk: Path) -> None:
        with atomic_write(disk / "a") as partial:
            partial.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space") as raised:
        fill(tmp_path)
    assert raised.value.filename == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


ABANDONS = """
import os, signal, sys
from pathlib import Path
from sacmil.atomic import atomic_write, atomic_directory
whole = {"file": atomic_write, "folder": atomic_directory}[sys.argv[1]]
with whole(Path(sys.argv[2])) as partial:
    (partial if partial.is_file() else partial / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@posix_only
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path, kind: str) -> None:
    final = tmp_path / "final"
    subprocess.run([sys.executable, "-c", ABANDONS, kind, str(final)], timeout=60, check=False)
    assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
    whole, fill = {"file": (atomic_write, fill_file), "folder": (atomic_directory, fill_folder)}[
        kind
    ]
    with whole(final) as partial:
        fill(partial)
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


@posix_only
@both
def test_what_another_writer_is_writing_is_not_removed(
    tmp_path: Path, whole: Any, fill: Callable[[Path], None]
) -> None:
    with whole(tmp_path / "final") as one:
        with whole(tmp_path / "final") as other:
            fill(other)
        remove_partial_files(tmp_path)
        assert one.exists()
        fill(one)
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


@both
@pytest.mark.parametrize("name", [None, "", "inside"])
def test_an_error_of_the_disk_never_names_a_partial_file(
    tmp_path: Path, whole: Any, fill: Callable[[Path], None], name: str | None
) -> None:
    final = tmp_path / "final"

    def write() -> None:
        with whole(final) as partial:
            fill(partial)
            raise OSError(errno.ENOSPC, "No space", None if name is None else str(partial / name))

    with pytest.raises(OSError, match="No space") as raised:
        write()
    assert raised.value.filename == str(final / (name or ""))
