"""``sacmil train``: train one model on one fold, or on every slide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._training import load_dataset, training_options

if TYPE_CHECKING:
    from sacmil.results.run import Run


@click.command()
@click.argument("table", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--model", help="Model; see `sacmil models`.  [default: sac_mil_local]")
@click.option("--fold", type=click.IntRange(0), help="Fold to test on.  [default: 0]")
@click.option("--all", "every_slide", is_flag=True, help="Train on every slide without testing.")
@click.option("--seed", type=click.IntRange(0), help="Seed of weights and order.  [default: 0]")
@click.option("--device", default="auto", show_default=True, help="Device: auto, cpu, cuda:0, …")
@training_options
def command(
    table: Path,
    model: str | None,
    fold: int | None,
    seed: int | None,
    device: str,
    out: Path,
    recipe: str | None,
    config: Path | None,
    options: tuple[str, ...],
    cache: Any,
    *,
    every_slide: bool,
    **dataset_options: Any,
) -> None:
    """Train a model on the slides of TABLE; run again to resume."""
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars
    from sacmil.training.config import resolve_configs
    from sacmil.training.train import train

    settings: dict[str, Any] = {"config": config, "recipe": recipe, "options": options}
    resolve_configs(model, **settings, argument="model")  # reject wrong ones before reading bags
    dataset, folds = load_dataset(table, every_slide=every_slide, **dataset_options)
    with progress_bars() as progress:
        run = train(
            dataset,
            model,
            out=out,
            folds=folds,
            fold=fold,
            every_slide=every_slide,
            seed=seed,
            device=device,
            cache=cache,
            on_progress=progress,
            **settings,
        )
    _print_results(run, every_slide=every_slide)


def _print_results(run: Run, *, every_slide: bool) -> None:
    from sacmil.card import read_card
    from sacmil.cli._summary import print_summary

    notes = read_card(run.folder).training
    click.echo(f"{run.folder}: {notes['model']}, epoch {notes['epoch']} of {notes['epochs']} kept")
    if not every_slide:
        print_summary(run.predictions, data=str(run.folder))
