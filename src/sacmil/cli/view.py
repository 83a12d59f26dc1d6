"""``sacmil view``: look at slides and what models said of them, in a browser."""

from __future__ import annotations

from pathlib import Path

import click

from sacmil.errors import MissingExtraError, RunError

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("results", type=_FOLDER)
@click.option(
    "--slides",
    multiple=True,
    type=_FOLDER,
    help="Folder whose slides may be shown, besides those in RESULTS; again for more.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8765,
    show_default=True,
    type=click.IntRange(0, 65_535),
    help="0 for any that is free.",
)
@click.option(
    "--token",
    help="What a browser must bring.  [default: made by lot where others can reach the address]",
)
@click.option(
    "--open/--no-open", "open_browser", default=False, show_default=True, help="Open a browser."
)
def command(
    results: Path,
    slides: tuple[Path, ...],
    host: str,
    port: int,
    token: str | None,
    open_browser: bool,  # noqa: FBT001 - click gives it by name
) -> None:
    """Show RESULTS, a folder that sacmil predict or sacmil demo wrote, for research use only.

    Only that folder is read, and slides in the folders named. Ctrl-C ends it.
    """
    try:
        from sacmil.viewer.server import bind_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise MissingExtraError("view", "the viewer") from None
    from sacmil.viewer.content import ResultsApi
    from sacmil.viewer.page import is_built

    if not is_built():
        raise RunError(
            "the viewer's page is not built; install Node.js 20 or newer and type `make viewer` in "
            "the sources"
        )
    server = bind_server(ResultsApi(results, slides), host, port, token)
    click.echo(f"{server.url}\nCtrl-C ends it. For research use only.")
    if open_browser:
        click.launch(server.url)
    server.run()
