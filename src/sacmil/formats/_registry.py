"""Finds out which layout a file has, and reads it.

A layout is a public module of this folder with two functions: ``matches(path) -> bool``, a cheap
look at the file, and ``read(path) -> Bag``.
"""

from __future__ import annotations

import importlib
import pkgutil
import stat
from functools import cache
from pathlib import Path
from typing import Protocol

import sacmil.formats
from sacmil.bag import Bag
from sacmil.errors import FormatError
from sacmil.formats._hdf5 import contents


class Format(Protocol):
    """What a module of this folder offers."""

    def matches(self, path: Path) -> bool:
        """Whether the file looks like this layout."""

    def read(self, path: Path) -> Bag:
        """The bag in the file."""


@cache
def _formats() -> dict[str, Format]:
    names = [module.name for module in pkgutil.iter_modules(sacmil.formats.__path__)]
    public = [name for name in names if not name.startswith("_")]
    return {name: importlib.import_module(f"sacmil.formats.{name}") for name in public}


def list_formats() -> list[str]:
    """Names of the layouts that can be read."""
    return sorted(_formats())


def read_bag(path: str | Path) -> Bag:
    """Read a bag in any layout this package knows.

    Args:
        path: a file; its layout is found by looking inside.
    """
    path = Path(path)
    _check_is_file(path)
    for layout in _formats().values():
        if layout.matches(path):
            return layout.read(path)
    raise FormatError(
        f"{path}: found {contents(path)}, in none of the layouts this sacmil reads "
        f"({', '.join(list_formats())}); build a sacmil.Bag from its arrays and save it with "
        "sacmil.write_bag"
    )


def _check_is_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        raise FormatError(
            f"{path}: there is no such file; expected a bag, check the path"
        ) from None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if not stat.S_ISREG(mode):
        found = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise FormatError(f"{path}: this is {found}; expected the file of one bag")
