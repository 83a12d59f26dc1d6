"""What arguments of public functions share: checks of numbers and paths, progress callbacks."""

from __future__ import annotations

import numbers
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeGuard

from sacmil.errors import OptionError, SacMILError, check_type, shorten_value


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is an integer of Python or numpy."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def to_integer(name: str, value: object, minimum: int | None = None, alternative: str = "") -> int:
    """Return an integer of Python; reject other types and integers below the minimum.

    Args:
        name: of the argument.
        value: what was given.
        minimum: None accepts every integer.
        alternative: what may be given instead, for the message.
    """
    if is_integer(value) and (minimum is None or value >= minimum):
        return int(value)
    limit = "" if minimum is None else f" from {minimum} up"
    other = f", or {alternative}" if alternative else ""
    raise OptionError(f"`{name}` is {shorten_value(value)}; expected a whole number{limit}{other}")


def list_paths(name: str, value: object, noun: str = "path") -> list[Path]:
    """Return the paths of a path or of several; reject an empty list and empty paths.

    Args:
        name: of the argument.
        value: what was given.
        noun: what the paths are of, for the message.
    """
    expected = f"a {noun}, or a list of {noun}s"
    given = [value] if isinstance(value, str | os.PathLike) else value
    if isinstance(given, Mapping) or not isinstance(given, Iterable):
        raise OptionError(f"`{name}` is {shorten_value(value)}; expected {expected}")
    paths = [to_path(name, item, expected) for item in given]
    if not paths:
        raise OptionError(f"`{name}` is {shorten_value(value)}; expected at least one {noun}")
    return paths


def to_path(name: str, value: object, expected: str) -> Path:
    """Return a path; reject other types and the empty path, which is the current folder.

    Args:
        name: of the argument.
        value: what was given.
        expected: what to give, for the message.
    """
    check_type(name, value, (str, os.PathLike), expected)
    if value == "":
        raise OptionError(f"`{name}` has an empty path; expected {expected}")
    assert isinstance(value, str | os.PathLike)
    return Path(value)


def check_is_file(path: Path, kind: str, error_type: type[SacMILError]) -> None:
    """Reject a path that is no file that can be read.

    Args:
        path: what was given.
        kind: what the file should hold, for the message.
        error_type: the error to raise.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        message = f"{path}: there is no such file; expected a {kind}, check the path"
        raise error_type(message) from None
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror}); check the path"
        raise error_type(message) from error
    if not stat.S_ISREG(mode):
        found = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise error_type(f"{path}: this is {found}; expected the file of one {kind}")


def to_output_folder(out: object) -> Path:
    """Return the path of ``out``; reject a file, and a path through a file."""
    path = to_path("out", out, "the path of a folder")
    for folder in (path, *path.parents):
        if folder.is_dir():
            break
        if folder.exists():
            raise OptionError(f"{folder}: is a file; expected a folder, choose another `out`")
    return path


class ProgressCallback(Protocol):
    """Called as work goes on."""

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None:
        """Report progress.

        Args:
            task: what is being done.
            done: how much of it is finished.
            total: how much there is.
            note: the newest value, such as a loss.
        """


def ignore_progress(task: str, done: int, total: int, note: str = "") -> None:
    """Report nothing: the default of every ``on_progress``."""
