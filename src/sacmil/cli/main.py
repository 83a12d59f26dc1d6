"""The command ``sacmil``: finds its subcommands in this folder, prints errors as sentences."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import click

import sacmil.cli
from sacmil._version import __version__
from sacmil.cli._messages import name_options, set_running_command
from sacmil.errors import (
    ConfigError,
    OptionError,
    SacMILError,
    UnknownModelError,
    explain_os_error,
    suggest_names,
)

_CONTEXT = {"help_option_names": ["-h", "--help"], "show_default": True}
_TRACEBACK = "SACMIL_TRACEBACK"
_WRONG_CALLS = (UnknownModelError, OptionError, ConfigError)
"""Errors of a wrong call, with exit code 2; all others exit with 1."""


class CommandGroup(click.Group):
    """Group whose subcommands are the ``command`` of each public module in this folder."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands."""
        names = (module.name for module in pkgutil.iter_modules(sacmil.cli.__path__))
        return sorted(name for name in names if not name.startswith("_") and name != "main")

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the subcommand of that name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"sacmil.cli.{cmd_name}").command
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a subcommand as click does; for an unknown name, suggest similar ones."""
        set_running_command(None)
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            ctx.fail(f"there is no command {args[0]!r}; {suggest_names(args[0], known)}")
        name, command, rest = super().resolve_command(ctx, args)
        set_running_command(command)
        return name, command, rest


@click.command(cls=CommandGroup, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="sacmil")
def cli() -> None:
    """SAC-MIL and its rivals: whole-slide classification by multiple instance learning."""


def main() -> None:
    """Run the command line; print errors without a traceback."""
    warnings.showwarning = _print_warning
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _exit_with_error("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output has closed it (`sacmil models | head`): print nothing more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            raise
        _exit_with_error(_describe_error(error), 2 if isinstance(error, _WRONG_CALLS) else 1)


def _describe_error(error: Exception) -> str:
    if isinstance(error, SacMILError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return explain_os_error(error)
    return (
        f"this is a fault of sacmil, please report it: {type(error).__name__}: {error} "
        f"({_locate_error(error)}; set {_TRACEBACK}=1 to see the traceback)"
    )


def _locate_error(error: Exception) -> str:
    """Return the last line of this package in the traceback, which helps the author of a model."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if f"{os.sep}sacmil{os.sep}" in frame.filename] or frames
    return f"{Path(ours[-1].filename).name}, line {ours[-1].lineno}"


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {name_options(message)}", err=True)


def _exit_with_error(message: str, code: int) -> None:
    click.echo(f"Error: {name_options(message)}", err=True)
    sys.exit(code)
