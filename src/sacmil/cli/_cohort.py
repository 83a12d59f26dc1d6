"""Options for a cohort's table, shared by several commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _parse_class_names(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(","))
    if len(set(names)) < 2 or len(set(names)) < len(names) or not all(names):
        raise click.BadParameter(f"{value!r}; expected two or more different names, as a,b,c")
    return names


_OPTIONS = (
    click.option(
        "--slide-column", "slide", metavar="NAME", help="Column of slide names, if not found."
    ),
    click.option(
        "--patient-column", "patient", metavar="NAME", help="Column of patient names, if not found."
    ),
    click.option("--label-column", "label", metavar="NAME", help="Column of labels, if not found."),
    click.option(
        "--classes",
        metavar="A,B",
        callback=_parse_class_names,
        help="Class names in order; other labels are an error.",
    ),
    click.option("--slide-table", type=_FILE, help="STAMP's slide table (PATIENT, FILENAME)."),
    click.option("--sheet", metavar="NAME", help="Sheet of an Excel file to read."),
    click.option(
        "--preserve",
        "site",
        metavar="COLUMN",
        help="Column of sites to keep in one fold; barcode: sites from TCGA barcodes.",
    ),
)


def cohort_options(function: Function) -> Function:
    """Add the options of a cohort's table, by the names of read_cohort's arguments."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def get_option_name(parameter: str) -> str:
    """Return the option of the running command that has a parameter name.

    Args:
        parameter: Python name, such as label.
    """
    parameters = click.get_current_context().command.params
    return next(found.opts[0] for found in parameters if found.name == parameter)
