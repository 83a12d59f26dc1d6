"""Options of the command line, for texts of the library that name Python arguments.

The library writes an argument as "`patch_size`" or "`patch_size=256`". Files keep that text; what
a command prints names its own option instead: "--patch-size" or "--patch-size 256".
"""

from __future__ import annotations

import importlib
import re

import click

_ARGUMENT = re.compile(r"(?<!`)`([a-z][a-z0-9_]*)(?:=([^`\n]*))?`(?!`)")
_MAKING_BAGS = ("convert", "extract")
"""Commands whose options help where the running command lacks them."""

_QUOTES = "'\""
"""Around texts, as repr writes them."""

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
    lacking = {name for name, _ in _ARGUMENT.findall(words) if not _has_option(name)}
    other = _choose_other_command(lacking) if lacking else None
    return _ARGUMENT.sub(lambda match: _format_argument(match[1], match[2], other), words)


def _has_option(name: str) -> bool:
    return _running_command is not None and _find_parameter(_running_command, name) is not None


def _choose_other_command(names: set[str]) -> str:
    """Return the command that has most of these options: a hint is about one command."""
    return max(_MAKING_BAGS, key=lambda other: len(names & set(_list_options(other))))


def _format_argument(name: str, value: str | None, other: str | None) -> str:
    if _running_command and (parameter := _find_parameter(_running_command, name)):
        return _format_parameter(parameter, value)
    if other and (option := _list_options(other).get(name)):
        return f"sacmil {other} {_format_parameter(option, value)}"
    return name if value is None else f"{name}={value}"


def _find_parameter(command: click.Command, name: str) -> click.Parameter | None:
    return next((parameter for parameter in command.params if parameter.name == name), None)


def _list_options(command: str) -> dict[str, click.Option]:
    """Return the options of a command by their Python names."""
    # imported here: printing an error of another command needs it, nothing else does
    params = importlib.import_module(f"sacmil.cli.{command}").command.params
    return {str(one.name): one for one in params if isinstance(one, click.Option)}


def _format_parameter(parameter: click.Parameter, value: str | None) -> str:
    if isinstance(parameter, click.Argument):
        return parameter.human_readable_name
    option = max(parameter.opts, key=len)
    if value is None or value == "True":
        return option
    if value == "False" and parameter.secondary_opts:
        return parameter.secondary_opts[0]
    return f"{option} {value.strip(_QUOTES)}"
