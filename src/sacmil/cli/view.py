"""``sacmil view``: view slides and predictions in a browser."""

from __future__ import annotations

from pathlib import Path

import click

from sacmil.cli import _options as opt
from sacmil.errors import MissingExtraError, RunError


@click.command()
@click.argument("results", type=opt.EXISTING_FOLDER)
@opt.repeatable(
    "--slides",
    "Folder of slides to show besides those in RESULTS; repeatable.",
    opt.EXISTING_FOLDER,
)
@opt.option("--host", "Address to listen on.", default="127.0.0.1")
@opt.option(
    "--port", "Port to listen on; 0 for any free port.", click.IntRange(0, 65_535), default=8765
)
@opt.option("--token", "Access token.  [default: random if other machines can reach the address]")
@opt.option("--open/--no-open", "Open a browser.", to="open_browser", default=False)
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
