"""``sacmil embed``: write the slide embeddings of a model."""

from __future__ import annotations

from pathlib import Path

import click

from sacmil.cli._option_names import name_options

_EXISTING = click.Path(exists=True, path_type=Path)


@click.command()
@click.argument("model", type=_EXISTING)
@click.argument("bags", nargs=-1, required=True, type=_EXISTING)
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="CSV file with the columns slide_id, e_0, e_1, …",
)
@click.option("--device", default="auto", show_default=True, help="Device: auto, cpu, cuda:0, …")
@click.option(
    "--allow-mismatch",
    is_flag=True,
    help="Also embed bags whose encoder or tile size differs from the model's.",
)
def command(
    model: Path, bags: tuple[Path, ...], out: Path, device: str, *, allow_mismatch: bool
) -> None:
    """Write the vector of each slide in BAGS that the head of MODEL, a model folder, sees."""
    from sacmil.cli._progress import progress_bars
    from sacmil.workflows.embed import embed_bags

    with progress_bars() as progress:
        done = embed_bags(
            bags, model, out, device=device, allow_mismatch=allow_mismatch, on_progress=progress
        )
    if done.slides:
        click.echo(f"{out}: {done.slides} slides, {done.width} numbers each")
    for name, reason in done.failures.items():
        click.echo(f"{name}: failed, {name_options(reason)}", err=True)
    if done.failures:
        raise SystemExit(1)
