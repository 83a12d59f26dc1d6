"""``sacmil embed``: write the slide embeddings of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sacmil.cli import _options as opt
from sacmil.cli._messages import name_options


@click.command()
@click.argument("model", type=opt.EXISTING)
@click.argument("bags", nargs=-1, required=True, type=opt.EXISTING)
@opt.option("--out", "CSV file with the columns slide_id, e_0, e_1, …", opt.FILE, required=True)
@opt.device_option("auto")
@opt.flag(
    "--allow-mismatch", "Also embed bags whose encoder or tile size differs from the model's."
)
def command(model: Path, bags: tuple[Path, ...], out: Path, **settings: Any) -> None:
    """Write the vector of each slide in BAGS that the head of MODEL, a model folder, sees."""
    from sacmil.cli._progress import progress_bars
    from sacmil.workflows.embed import embed_bags

    with progress_bars() as progress:
        done = embed_bags(bags, model, out, on_progress=progress, **settings)
    if done.slides:
        click.echo(f"{out}: {done.slides} slides, {done.width} numbers each")
    for name, reason in done.failures.items():
        click.echo(f"{name}: failed, {name_options(reason)}", err=True)
    if done.failures:
        raise SystemExit(1)
