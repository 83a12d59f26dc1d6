"""``sacmil``: exit codes, sentences instead of tracebacks, suggestions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from sacmil import __version__
from sacmil.cli import doctor
from sacmil.cli.main import cli

COMMANDS = cli.list_commands(click.Context(cli))

PLANT = """
import sacmil.environment
def fail(): raise ZeroDivisionError("planted")
sacmil.environment.list_versions = fail
"""


def test_help_names_every_command(sacmil: Callable) -> None:
    done = sacmil("--help")
    assert done.code == 0
    assert all(f"\n  {name} " in done.out for name in COMMANDS)
    assert sacmil("-h").out == done.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(sacmil: Callable, name: str) -> None:
    done = sacmil(name, "--help")
    assert done.code == 0
    assert done.out.startswith("Usage:")


def test_the_version_is_the_packages(sacmil: Callable) -> None:
    assert __version__ in sacmil("--version").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["modles"], "there is no command 'modles'; did you mean 'models'"),
        (["zzz"], "there is no command 'zzz'; known are: "),
        (["main"], "there is no command 'main'"),
        (["_progress"], "there is no command '_progress'"),
        (["info"], "Missing argument 'FILES...'"),
        (["info", "--jsno", "x"], "--jsno"),
        (["doctor", "extra"], "extra"),
        (["--nosuch"], "--nosuch"),
        (["demo", "--epochs", "many"], "'many'"),
        (["demo", "--slides", "1"], "x>=12"),
        ([], "Usage: "),
    ],
)
def test_a_wrong_call_ends_with_2_and_says_why(
    sacmil: Callable, arguments: list[str], message: str
) -> None:
    done = sacmil(*arguments)
    assert done.code == 2
    assert message in done.err + done.out
    assert "Traceback" not in done.err


def test_a_fault_of_ours_is_one_sentence_and_no_traceback(sacmil_process: Callable) -> None:
    done = sacmil_process("doctor", before=PLANT, SACMIL_TRACEBACK="")
    assert done.code == 1
    assert done.err.startswith("Error: this is a fault of sacmil, please report it: ")
    assert "ZeroDivisionError: planted" in done.err
    assert done.err.count("\n") == 1


def test_the_traceback_is_shown_to_who_asks_as_the_sentence_says(sacmil_process: Callable) -> None:
    done = sacmil_process("doctor", before=PLANT, SACMIL_TRACEBACK="1")
    assert done.code == 1
    assert "Traceback (most recent call last)" in done.err
    assert "SACMIL_TRACEBACK=1" in sacmil_process("doctor", before=PLANT).err


CLOSED = "; check its permissions, or choose another folder"
FULL = "; the disk is full: free some space, or choose another folder"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "Error: interrupted\n"),
        (click.Abort(), 130, "Error: interrupted\n"),
        (
            PermissionError(13, "Permission denied", "a.h5"),
            1,
            f"Error: a.h5: Permission denied{CLOSED}\n",
        ),
        (
            OSError(30, "Read-only file system", "a"),
            1,
            f"Error: a: Read-only file system{CLOSED}\n",
        ),
        (OSError(28, "No space left on device"), 1, f"Error: No space left on device{FULL}\n"),
    ],
)
def test_what_stops_a_command_is_reported_in_one_line(
    sacmil: Callable, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def stop() -> None:
        raise error

    monkeypatch.setattr(doctor.command, "callback", stop)
    done = sacmil("doctor")
    assert (done.code, done.err.lstrip("\n")) == (code, message)  # click ends the line of a ^C


@pytest.mark.skipif(os.name == "nt", reason="Windows reports a lost reader differently")
@pytest.mark.parametrize("arguments", [["--help"], ["doctor"], ["info", "missing.h5"]])
def test_a_reader_that_went_away_gets_no_traceback(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "sacmil", *arguments],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full disk")
def test_a_full_disk_is_reported_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sacmil", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, f"Error: No space left on device{FULL}\n")
