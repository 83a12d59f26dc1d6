"""``sacmil reproduce``: the paper's tables and figures, made anew."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import click

import sacmil.experiments


def _experiments() -> dict[str, ModuleType]:
    """Every public file of the experiments folder by its NAME; none loads torch by itself."""
    found = (module.name for module in pkgutil.iter_modules(sacmil.experiments.__path__))
    modules = (
        importlib.import_module(f"sacmil.experiments.{name}")
        for name in found
        if not name.startswith("_")
    )
    return {module.NAME: module for module in modules}


@click.command()
@click.argument("experiment", type=click.Choice(sorted(_experiments())))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for tables and figures; by default named after the experiment.",
)
def command(experiment: str, out: Path | None) -> None:
    """Make a table or figure of the paper anew."""
    for path in _experiments()[experiment].run(out or Path(experiment)):
        click.echo(path)
