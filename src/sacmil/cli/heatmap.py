"""``sacmil heatmap``: where a model looked, over the slide, beside the truth, for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._output_folder import check_not_run_or_model

if TYPE_CHECKING:
    from sacmil.workflows.heatmaps import HeatmapSummary

_EXISTING = click.Path(exists=True, path_type=Path)


def _require_one_model(
    ctx: click.Context, parameter: click.Parameter, value: tuple[Path, ...]
) -> Path:
    if len(value) > 1:
        raise click.BadParameter(
            "one model is drawn at a time; give one, or let sacmil predict draw several"
        )
    return value[0]


@click.command()
@click.argument("bags", nargs=-1, required=True, type=_EXISTING)
@click.option(
    "--model",
    required=True,
    multiple=True,
    type=_EXISTING,
    callback=_require_one_model,
    help="Model folder, exported or not, or a run, which is the mean of its parts.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the pictures.",
)
@click.option(
    "--slides",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where the slides are; without, maps are on white and no tiles are shown.",
)
@click.option(
    "--class",
    "classes",
    multiple=True,
    help="Draw the scores of this class, for models that have them; again for more.",
)
@click.option(
    "--normalise",
    "how",
    default="rank",
    show_default=True,
    type=click.Choice(["raw", "minmax", "rank"]),
    help="Of the overlay, within each slide; the map always shows raw scores.",
)
@click.option("--geojson", is_flag=True, help="Write tiles for QuPath too.")
@click.option("--csv", is_flag=True, help="Write a table of the tiles too.")
@click.option(
    "--top", default=8, show_default=True, type=click.IntRange(0, 100), help="Tiles in the strip."
)
@click.option(
    "--truth",
    type=_EXISTING,
    help="ASAP's XML, GeoJSON or JSON outlines, or a folder of them.  [default: labels in bags]",
)
@click.option("--device", default="cpu", show_default=True, help="auto, cpu, cuda:0, …")
@click.option(
    "--allow-mismatch",
    is_flag=True,
    help="Draw bags of another encoder or tile size than the model's, with a warning.",
)
def command(bags: tuple[Path, ...], model: Path, out: Path, device: str, **settings: Any) -> None:
    """Draw the scores a model gives the tiles of BAGS, files or folders of them."""
    from sacmil.cli._progress import progress_bars
    from sacmil.workflows.heatmaps import HeatmapSettings, draw_heatmaps

    check_not_run_or_model(out)
    with progress_bars() as progress:
        made = draw_heatmaps(
            bags, model, out, HeatmapSettings(**settings), device=device, progress=progress
        )
    _print_results(made)


def _print_results(summary: HeatmapSummary) -> None:
    from sacmil.evaluation.printable import make_printable

    for paths in summary.written.values():
        for path in paths:
            click.echo(path)
    for note in summary.notes:
        click.echo(f"Note: {make_printable(note)}", err=True)
    for reason in summary.failures.values():
        click.echo(f"Error: {make_printable(reason)}", err=True)
    if summary.failures:
        raise SystemExit(1)
