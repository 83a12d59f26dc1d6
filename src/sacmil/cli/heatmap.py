"""``sacmil heatmap``: draw a model's tile scores over slides and beside annotations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sacmil.cli import _options as opt
from sacmil.cli._messages import exit_with_errors, name_options


def _require_one_model(
    ctx: click.Context, parameter: click.Parameter, value: tuple[Path, ...]
) -> Path:
    if len(value) > 1:
        raise click.BadParameter("expected one model; use sacmil predict to draw several")
    return value[0]


@click.command()
@click.argument("bags", nargs=-1, required=True, type=opt.EXISTING)
@opt.repeatable(
    "--model",
    "Model folder, exported model, or run; a run is the mean of its models.",
    opt.EXISTING,
    required=True,
    callback=_require_one_model,
)
@opt.option("--out", "Folder for the pictures.", opt.FOLDER, required=True)
@opt.option(
    "--slides",
    "Folder of the slides; without it, maps are on white and show no tiles.",
    opt.EXISTING_FOLDER,
)
@opt.repeatable(
    "--class", "Draw the scores of this class, if the model has them; repeatable.", to="classes"
)
@click.option(
    "--normalization",
    "--normalise",
    "normalization",
    type=click.Choice(["raw", "minmax", "rank"]),
    help="Normalisation of the overlay per slide; the map always shows raw scores. Scores that add "
    "to a value or take from it have none.  [default: rank]",
)
@opt.flag("--geojson", "Also write tiles for QuPath.")
@opt.flag("--csv", "Also write a table of the tiles.")
@opt.option("--top", "Number of top tiles.", click.IntRange(0, 100), default=8)
@opt.option(
    "--truth",
    "Annotations as ASAP XML, GeoJSON or JSON, or a folder.  [default: labels in bags]",
    opt.EXISTING,
)
@opt.device_option("cpu")
@opt.allow_mismatch_option
@opt.flag("--calibrated", "Apply the temperatures and thresholds of sacmil calibrate.")
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
    exit_with_errors(map(make_printable, drawn.failures.values()))
