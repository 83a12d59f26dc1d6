"""``sacmil models``: the names create_model and --model accept."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sacmil.plugins import BUILT_IN


@click.command()
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the models, or the options and recipes of the model NAME."""
    from sacmil import describe_model, list_models

    if name is None:
        names = list_models()
        width = max(map(len, names)) + 2
        for model in names:
            description = describe_model(model)
            click.echo(f"{model:<{width}}{description.summary}{_from(description.origin)}")
        return
    description = describe_model(name)
    click.echo(f"{name}: {description.summary}{_from(description.origin)}")
    if description.training_notes:
        click.echo(f"in your own training loop: {description.training_notes}")
    width = 2 + max(map(len, (*description.options, *description.recipes)))
    for option, default in description.options.items():
        click.echo(f"  {option:<{width}}{default!r:<13}{description.help.get(option, '')}")
    click.echo("recipes, and how they differ from the paper's (adam, lr 1e-4, 200 epochs, last):")
    for recipe, settings in description.recipes.items():
        shown = ", ".join(f"{key}={_format_value(value)}" for key, value in settings.items())
        click.echo(f"  {recipe:<{width}}{shown or 'nothing'}")


def _from(origin: str) -> str:
    """Return the package a model comes from, if it is not this one."""
    return "" if origin == BUILT_IN else f" [{origin}]"


def _format_value(value: object) -> str:
    return str(dict(value)) if isinstance(value, Mapping) else str(value)
