"""Options that evaluate and compare share: how metrics are estimated and printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def evaluation_options(command: Command) -> Command:
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
        help="Confidence level; a difference is significant if p < 1 - level.",
    ),
    click.option(
        "--draws",
        default=2000,
        show_default=True,
        type=click.IntRange(1),
        help="Number of bootstrap resamples of patients.",
    ),
    click.option(
        "--seed",
        default=0,
        show_default=True,
        type=click.IntRange(0),
        help="Seed of the resampling.",
    ),
    click.option(
        "--format",
        "table_format",
        default="text",
        show_default=True,
        type=click.Choice(["text", "markdown", "latex", "csv"]),
        help="Format of the printed table.",
    ),
    click.option("--percent", is_flag=True, help="Print percentages with one decimal."),
    click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder to write report.html, tables and plots to.",
    ),
)


def parse_metric_names(ctx: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    """Return the metrics named in a comma-separated list, or all; reject unknown names."""
    from sacmil.evaluation.metrics import LOCALIZATION_TITLES, METRICS

    names = list(METRICS) if value == "all" else [name.strip() for name in value.split(",")]
    for name in names:
        if name in LOCALIZATION_TITLES:
            raise click.BadParameter(
                f"{name} is printed whenever bags have instance labels; leave it out of the list"
            )
        check_metric_name(name, list(METRICS))
    return list(dict.fromkeys(names))


def check_metric_name(name: str, known: Sequence[str]) -> None:
    """Reject an unknown name and suggest a similar one."""
    from sacmil.errors import suggest_names

    if name not in known:
        raise click.BadParameter(f"there is no metric {name!r}; {suggest_names(name, known)}")


def check_can_report(out: Path | None) -> None:
    """Check before computing that a requested report can be written."""
    from sacmil.evaluation.plots import check_matplotlib

    if out is not None:
        check_matplotlib("the report")
