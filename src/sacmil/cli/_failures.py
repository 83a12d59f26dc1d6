"""Failures for people: one cause is printed once, with a count and the first names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import click

_MAX_NAMES = 3
"""Names printed per cause."""


def find_cause(name: str, reason: str) -> str:
    """What two items that failed alike have in common: the reason without names and numbers.

    >>> find_cause("cell_7", "in/cell_7.png: has 3 x 4 pixels")
    '… has # x # pixels'
    """
    anonymous = re.sub(rf"\S*\b{re.escape(name)}\b\S*", "…", reason)
    return re.sub(r"\d+(\.\d+)?", "#", anonymous)


def group_failures(failures: Mapping[str, str]) -> list[list[str]]:
    """Names of items that failed alike, the largest group first.

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
        listed_in: the file that has every reason.
        noun: what the items are.
    """
    for names in group_failures(failures):
        reason = failures[names[0]]
        if len(names) == 1:
            click.echo(f"{names[0]}: failed, {reason}", err=True)
            continue
        more = ", …" if len(names) > _MAX_NAMES else ""
        click.echo(
            f"{len(names)} {noun} failed alike ({', '.join(names[:_MAX_NAMES])}{more}), the first: "
            f"{reason}",
            err=True,
        )
    click.echo(f"{len(failures)} failed: {listed_in} says why", err=True)
