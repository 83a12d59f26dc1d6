"""``sacmil view``: view slides and predictions in a browser."""

from __future__ import annotations

from pathlib import Path

import click

from sacmil.cli._options import EXISTING_FOLDER
from sacmil.errors import MissingExtraError, RunError


@click.command()
@click.argument("results", type=EXISTING_FOLDER)
@click.option(
    "--slides",
    multiple=True,
    type=EXISTING_FOLDER,
    help="Folder of slides to show besides those in RESULTS; repeatable.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port",
    default=8765,
    type=click.IntRange(0, 65_535),
    help="Port to listen on; 0 for any free port.",
)
@click.option(
    "--token", help="Access token.  [default: random if other machines can reach the address]"
)
@click.option("--open/--no-open", "open_browser", default=False, help="Open a browser.")
def command(
    results: Path,
    slides: tuple[Path, ...],
    host: str,
    port: int,
    token: str | None,
    open_browser: bool,  # noqa: FBT001 - click gives it by name
) -> None:
    """Show RESULTS, a folder written by sacmil predict or sacmil demo. For research use only.

    The viewer reads only that folder and the folders given by --slides. Ctrl-C stops it.
    """
    try:
        from sacmil.viewer.server import bind_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise MissingExtraError("view", "the viewer") from None
    from sacmil.viewer.content import ResultsApi
    from sacmil.viewer.responses import is_built

    if not is_built():
        raise RunError(
            "the viewer's page is not built; install Node.js 20 or newer and run `make viewer` in "
            "the sources"
        )
    server = bind_server(ResultsApi(results, slides), host, port, token)
    click.echo(f"{server.url}\nCtrl-C stops it. For research use only.")
    if open_browser:
        click.launch(server.url)
    server.run()
