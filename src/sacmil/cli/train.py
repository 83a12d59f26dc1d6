"""``sacmil train``: train one model on one fold, or on every slide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sacmil.cli import _options as opt
from sacmil.cli._messages import print_summary


@click.command()
@click.argument("table", type=opt.EXISTING_FILE)
@opt.option("--model", "Model; see `sacmil models`.  [default: sac_mil_near_far]")
@opt.option("--fold", "Fold to test on.  [default: 0]", opt.NATURAL)
@opt.flag("--all", "Train on every slide without testing.", to="every_slide")
@opt.option("--seed", "Seed of weights and order.  [default: 0]", opt.NATURAL)
@opt.device_option("auto")
@opt.training_options
def command(table: Path, model: str | None, *, every_slide: bool, **given: Any) -> None:
    """Train a model on the slides of TABLE; run again to resume."""
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.card import read_card
    from sacmil.cli._progress import progress_bars
    from sacmil.training.config import resolve_configs
    from sacmil.training.train import train

    settings = {name: given.pop(name) for name in ("config", "recipe", "options")}
    job = {name: given.pop(name) for name in ("out", "fold", "seed", "device", "cache")}
    resolve_configs(model, **settings, argument="model")  # reject wrong ones before reading bags
    config = settings["config"]
    dataset, folds = opt.load_dataset(table, every_slide=every_slide, config=config, **given)
    job |= {"folds": folds, "every_slide": every_slide}
    with progress_bars() as progress:
        run = train(dataset, model, on_progress=progress, **job, **settings)
    notes = read_card(run.folder).training
    click.echo(f"{run.folder}: {notes['model']}, epoch {notes['epoch']} of {notes['epochs']} kept")
    if not every_slide:
        print_summary(run.predictions, data=str(run.folder))
