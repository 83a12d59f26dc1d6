"""Plugins: models, tasks, formats, encoders and slide readers that other packages add.

A package adds one by an entry point in its pyproject.toml::

    [project.entry-points."sacmil.models"]
    my_model = "my_package.my_model"

The module defines what a file of ``sacmil/models`` (``tasks``, ``formats``, ``encoders``,
``slides/readers``) defines. It is imported when the members of that kind are first listed.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, NamedTuple

from sacmil.errors import PluginWarning

BUILT_IN = "sacmil"
"""The origin of members of this package itself."""


class Plugin(NamedTuple):
    """A loaded member of another package."""

    name: str
    value: Any
    """What the entry point names, usually a module."""
    origin: str
    """Name and version of the package."""


def import_public_modules(package: ModuleType) -> dict[str, ModuleType]:
    """Import the modules of a package whose names have no underscore in front; by name."""
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    public = [name for name in names if not name.startswith("_")]
    return {name: importlib.import_module(f"{package.__name__}.{name}") for name in public}


@cache
def load_plugins(kind: str) -> tuple[Plugin, ...]:
    """Return the plugins of one kind, sorted by name.

    A package that cannot be imported is skipped with a warning, so that the others still work.

    Args:
        kind: models, tasks, formats, encoders or readers.
    """
    found = (_load_plugin(entry) for entry in sorted(entry_points(group=f"sacmil.{kind}")))
    return tuple(plugin for plugin in found if plugin is not None)


def _load_plugin(entry: EntryPoint) -> Plugin | None:
    origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
    try:
        return Plugin(entry.name, entry.load(), origin)
    except Exception as error:  # another package's code may raise anything
        warnings.warn(
            f"{origin}: its {entry.group} entry {entry.name!r} cannot be loaded "
            f"({type(error).__name__}: {error}); update or uninstall the package",
            PluginWarning,
            stacklevel=2,
        )
        return None
