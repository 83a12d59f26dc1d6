"""``sacmil doctor``: what is installed, what is missing, and the command that installs it."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """Show versions, devices and extras, and how to install what is missing."""
    from sacmil.environment import list_devices, list_extras, list_versions

    width = 2 + max(map(len, list_versions()))
    for name, version in list_versions().items():
        click.echo(f"{name:<{width}}{version}")
    click.echo()
    for device in list_devices():
        click.echo(f"{'device':<{width}}{device}")
    click.echo()
    for extra in list_extras():
        state = "ready" if not extra.missing else f"missing {', '.join(extra.missing)}"
        click.echo(f"{'extra ' + extra.name:<{width}}{state}")
        if extra.missing:
            click.echo(f"{'':<{width}}pip install 'sacmil[{extra.name}]'")
