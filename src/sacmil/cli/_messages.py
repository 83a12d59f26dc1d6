"""What commands print: texts of the library with options for arguments, failures and tables.

The library writes an argument as "`patch_size`" or "`patch_size=256`". Files keep that text; what
a command prints names its own option instead: "--patch-size" or "--patch-size 256".
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sacmil.results import Predictions

_ARGUMENT = re.compile(r"(?<!`)`([a-z][a-z0-9_]*)(?:=([^`\n]*))?`(?!`)")
_OTHER_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "convert": (),
    "extract": (),
    "split": ("validation",),
}
"""Commands whose options help where the running command lacks them: all, or only those named."""

_QUOTES = "'\""
"""Around texts, as repr writes them."""
_MAX_NAMES = 3
"""Names printed per cause of failures."""

_running_command: click.Command | None = None


def set_running_command(command: click.Command | None) -> None:
    """Remember the command whose options texts shall name.

    Click's own context ends before errors are printed, and other threads have none.
    """
    global _running_command
    _running_command = command


def name_options(text: object) -> str:
    """Return a text of the library with options in place of Python arguments.

    An argument that the running command lacks gets the name of a command that has it. An argument
    that is no option stays, without backticks.
    """
    words = str(text)
    own = {} if _running_command is None else {one.name: one for one in _running_command.params}
    lacking = {name for name, _ in _ARGUMENT.findall(words)} - own.keys()
    other, others = _find_other_command(lacking) if lacking else ("", {})

    def format_argument(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name in own:
            return _format_parameter(own[name], value)
        if name in others:
            return f"sacmil {other} {_format_parameter(others[name], value)}"
        return name if value is None else f"{name}={value}"

    return _ARGUMENT.sub(format_argument, words)


def _find_other_command(names: set[str]) -> tuple[str, dict[str | None, click.Option]]:
    """Return the command that has most of these options, a hint is about one; and its options."""
    options: dict[str, dict[str | None, click.Option]] = {}
    # imported here: only printing an error of another command needs it
    for other, named in _OTHER_COMMANDS.items():
        params = importlib.import_module(f"sacmil.cli.{other}").command.params
        found = {one.name: one for one in params if isinstance(one, click.Option)}
        options[other] = {name: found[name] for name in named or found}
    chosen = max(options, key=lambda other: len(names & options[other].keys()))
    return chosen, options[chosen]


def _format_parameter(parameter: click.Parameter, value: str | None) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.human_readable_name
    option = max(parameter.opts, key=len)
    if value is None or value == "True":
        return option
    if value == "False" and parameter.secondary_opts:
        return parameter.secondary_opts[0]
    return f"{option} {value.strip(_QUOTES)}"


def exit_with_errors(reasons: Iterable[object]) -> None:
    """Print each reason as an error, and exit with 1 if there is one."""
    texts = [f"Error: {name_options(reason)}" for reason in reasons]
    for text in texts:
        click.echo(text, err=True)
    if texts:
        raise SystemExit(1)


def find_cause(name: str, reason: str) -> str:
    """Return the reason of a failure without names and numbers, to group similar failures.

    >>> find_cause("cell_7", "in/cell_7.png: has 3 x 4 pixels")
    '… has # x # pixels'
    """
    anonymous = re.sub(rf"\S*\b{re.escape(name)}\b\S*", "…", reason)
    return re.sub(r"\d+(\.\d+)?", "#", anonymous)


def group_failures(failures: Mapping[str, str]) -> list[tuple[list[str], str]]:
    """Return names of failures with the same cause, and the first reason; most frequent first.

    Args:
        failures: reasons by name.
    """
    groups: dict[str, list[str]] = {}
    for name, reason in failures.items():
        groups.setdefault(find_cause(name, reason), []).append(name)
    ordered = sorted(groups.values(), key=len, reverse=True)
    return [(names, name_options(failures[names[0]])) for names in ordered]


def describe_failures(names: Sequence[str], noun: str) -> str:
    """Return how many failed for the same reason, and the first names."""
    more = ", …" if len(names) > _MAX_NAMES else ""
    shown = ", ".join(names[:_MAX_NAMES])
    return f"{len(names)} {noun} failed for the same reason ({shown}{more}); the first"


def print_failures(failures: Mapping[str, str], listed_in: Path, *, noun: str = "slides") -> None:
    """Print each cause once, to standard error.

    Args:
        failures: reasons by name.
        listed_in: file that lists every reason.
        noun: plural noun for the items.
    """
    for names, reason in group_failures(failures):
        failed = f"{names[0]}: failed," if len(names) == 1 else f"{describe_failures(names, noun)}:"
        click.echo(f"{failed} {reason}", err=True)
    click.echo(f"{len(failures)} failed; see the reasons in {listed_in}", err=True)


def print_summary(predictions: Predictions, data: str) -> None:
    """Print the metrics of every model over the test folds, as `sacmil evaluate` does."""
    from sacmil.evaluation.report import Report
    from sacmil.evaluation.summary import summarize
    from sacmil.evaluation.table_format import render_table

    estimates = summarize(predictions)
    report = Report(title="", predictions=predictions, estimates=estimates, data=data)
    click.echo(render_table(report.summary), nl=False)
