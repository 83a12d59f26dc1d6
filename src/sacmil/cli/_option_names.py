"""Options of the command line, for texts of the library that name Python arguments.

The library writes an argument as "`patch_size`" or "`patch_size=256`". Files keep that text; what
a command prints names its own option instead: "--patch-size" or "--patch-size 256".
"""

from __future__ import annotations

import importlib
import re

import click

_ARGUMENT = re.compile(r"(?<!`)`([a-z][a-z0-9_]*)(?:=([^`\n]*))?`(?!`)")
_READING_BAGS = ("convert", "extract")
"""Commands whose options help where the running command has none: they make bags."""

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

    An argument that is an option of another command only gets that command's name. An argument
    that is no option stays, without backticks.
    """
    return _ARGUMENT.sub(lambda match: _find_option(match[1], match[2]), str(text))


def _find_option(name: str, value: str | None) -> str:
    if _running_command and (found := _format_option(_running_command, name, value)):
        return found
    for other in _READING_BAGS:
        command = importlib.import_module(f"sacmil.cli.{other}").command
        if found := _format_option(command, name, value):
            return f"sacmil {other} {found}"
    return name if value is None else f"{name}={value}"


def _format_option(command: click.Command, name: str, value: str | None) -> str:
    """Return how the command spells the argument; empty if it has none of that name."""
    parameter = next((p for p in command.params if p.name == name), None)
    if parameter is None:
        return ""
    if isinstance(parameter, click.Argument):
        return parameter.human_readable_name
    option = max(parameter.opts, key=len)
    if value is None or value == "True":
        return option
    if value == "False" and parameter.secondary_opts:
        return parameter.secondary_opts[0]
    return f"{option} {value.strip(_QUOTES)}"
