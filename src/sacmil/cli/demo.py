"""``sacmil demo``: train on a cohort made on the spot, print a table, write a report folder."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--out",
    default="report",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Report folder.",
)
@click.option(
    "--slides", default=240, show_default=True, type=click.IntRange(12), help="In the cohort."
)
@click.option(
    "--epochs", default=10, show_default=True, type=click.IntRange(1), help="Of each model."
)
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0), help="Of cohort and training."
)
def command(out: Path, slides: int, epochs: int, seed: int) -> None:
    """Train SAC-MIL on a synthetic cohort and show what seeing space is worth."""
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import bars
    from sacmil.workflows.demo import Settings, run_demo

    with bars() as progress:
        rows = run_demo(out, Settings(slides=slides, epochs=epochs, seed=seed), progress)
    click.echo(f"\n{'model':<24}{'parameters':>11}{'accuracy':>10}{'AUC':>8}")
    for row in rows:
        click.echo(f"{row.name:<24}{row.parameters:>11,}{row.accuracy:>10.3f}{row.auc:>8.3f}")
    click.echo(f"\nreport: {out / 'index.html'}")
