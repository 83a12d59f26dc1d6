"""Printed failures: each cause once, with a count and the first names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import click

from sacmil.cli._option_names import name_options

_MAX_NAMES = 3
"""Names printed per cause."""


def find_cause(name: str, reason: str) -> str:
    """Return the reason of a failure without names and numbers, to group similar failures.

    >>> find_cause("cell_7", "in/cell_7.png: has 3 x 4 pixels")
    '… has # x # pixels'
    """
    anonymous = re.sub(rf"\S*\b{re.escape(name)}\b\S*", "…", reason)
    return re.sub(r"\d+(\.\d+)?", "#", anonymous)


def group_failures(failures: Mapping[str, str]) -> list[list[str]]:
    """Group the names of items that failed for the same cause, the largest group first.

    Args:
        failures: reasons by name.
    """
    groups: dict[str, list[str]] = {}
    for name, reason in failures.items():
        groups.setdefault(find_cause(name, reason), []).append(name)
    return sorted(groups.values(), key=len, reverse=True)


def print_failures(failures: Mapping[str, str], listed_in: Path, *, noun: str = "slides") -> None:
    """Print each cause once, to standard error.

    Args:
        failures: reasons by name.
        listed_in: file that lists every reason.
        noun: plural noun for the items.
    """
    for names in group_failures(failures):
        reason = name_options(failures[names[0]])
        if len(names) == 1:
            click.echo(f"{names[0]}: failed, {reason}", err=True)
            continue
        more = ", …" if len(names) > _MAX_NAMES else ""
        click.echo(
            f"{len(names)} {noun} failed for the same reason "
            f"({', '.join(names[:_MAX_NAMES])}{more}); the first: {reason}",
            err=True,
        )
    click.echo(f"{len(failures)} failed; see the reasons in {listed_in}", err=True)
