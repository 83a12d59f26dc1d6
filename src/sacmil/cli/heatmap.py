"""``sacmil heatmap``: draw a model's tile scores over slides and beside annotations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sacmil.cli._messages import name_options
from sacmil.cli._options import (
    EXISTING,
    EXISTING_FOLDER,
    FOLDER,
    allow_mismatch_option,
    device_option,
)


def _require_one_model(
    ctx: click.Context, parameter: click.Parameter, value: tuple[Path, ...]
) -> Path:
    if len(value) > 1:
        raise click.BadParameter("expected one model; use sacmil predict to draw several")
    return value[0]


@click.command()
@click.argument("bags", nargs=-1, required=True, type=EXISTING)
@click.option(
    "--model",
    required=True,
    multiple=True,
    type=EXISTING,
    callback=_require_one_model,
    help="Model folder, exported model, or run; a run is the mean of its models.",
)
@click.option("--out", required=True, type=FOLDER, help="Folder for the pictures.")
@click.option(
    "--slides",
    type=EXISTING_FOLDER,
    help="Folder of the slides; without it, maps are on white and show no tiles.",
)
@click.option(
    "--class",
    "classes",
    multiple=True,
    help="Draw the scores of this class, if the model has them; repeatable.",
)
@click.option(
    "--normalization",
    "--normalise",
    "normalization",
    default="rank",
    type=click.Choice(["raw", "minmax", "rank"]),
    help="Normalisation of the overlay per slide; the map always shows raw scores.",
)
@click.option("--geojson", is_flag=True, help="Also write tiles for QuPath.")
@click.option("--csv", is_flag=True, help="Also write a table of the tiles.")
@click.option("--top", default=8, type=click.IntRange(0, 100), help="Number of top tiles.")
@click.option(
    "--truth",
    type=EXISTING,
    help="Annotations as ASAP XML, GeoJSON or JSON, or a folder.  [default: labels in bags]",
)
@device_option("cpu")
@allow_mismatch_option
def command(bags: tuple[Path, ...], model: Path, out: Path, **settings: Any) -> None:
    """Draw a model's scores of the tiles of BAGS: files, or folders of bags."""
    from sacmil.cli._progress import progress_bars
    from sacmil.evaluation.table_format import make_printable
    from sacmil.workflows.heatmaps import draw_heatmaps

    with progress_bars() as progress:
        drawn = draw_heatmaps(bags, model, out, on_progress=progress, **settings)
    for paths in drawn.written.values():
        for path in paths:
            click.echo(path)
    for note in drawn.notes:
        click.echo(f"Note: {make_printable(name_options(note))}", err=True)
    for reason in drawn.failures.values():
        click.echo(f"Error: {make_printable(name_options(reason))}", err=True)
    if drawn.failures:
        raise SystemExit(1)
