"""Options that evaluate and compare share: how figures are computed and printed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from sacmil.evaluation.report import Report

Command = TypeVar("Command", bound=Callable[..., Any])


def figure_options(command: Command) -> Command:
    """Add --level, --draws, --seed, --format, --percent and --out."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--level",
        default=0.95,
        show_default=True,
        type=click.FloatRange(0, 0.9999, min_open=True),
        help="Of intervals; a difference is claimed when p is below one minus this.",
    ),
    click.option(
        "--draws",
        default=2000,
        show_default=True,
        type=click.IntRange(1),
        help="How many times patients are drawn again.",
    ),
    click.option(
        "--seed", default=0, show_default=True, type=click.IntRange(0), help="Of those draws."
    ),
    click.option(
        "--format",
        "layout",
        default="text",
        show_default=True,
        type=click.Choice(["text", "markdown", "latex", "csv"]),
        help="Of the table that is printed.",
    ),
    click.option("--percent", is_flag=True, help="Percentages with one decimal, as in the paper."),
    click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder for report.html, tables in every format, and plots.",
    ),
)


def metric_names(ctx: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    """Names separated by commas, or all; each is checked."""
    from sacmil.errors import suggestion
    from sacmil.evaluation.metrics import METRICS

    names = list(METRICS) if value == "all" else [name.strip() for name in value.split(",")]
    for name in names:
        if name not in METRICS:
            raise click.BadParameter(f"there is no metric {name!r}; {suggestion(name, METRICS)}")
    return list(dict.fromkeys(names))


def check_can_report(out: Path | None) -> None:
    """Say what is missing before anything is computed."""
    from sacmil.evaluation.plots import check_can_draw

    if out is not None:
        check_can_draw("the report")


def tell_report(out: Path | None, report: Report) -> None:
    """Write the folder, if there is to be one, and say where."""
    from sacmil.evaluation.report import write_folder

    if out is not None:
        click.echo(f"Report: {write_folder(out, report)}", err=True)
