"""``sacmil train``: train one model on one fold, or on every slide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._training import load_dataset, read_config_values, training_options

if TYPE_CHECKING:
    from sacmil.training.config import TrainingConfig


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
    overrides: tuple[str, ...],
    cache: Any,
    *,
    every_slide: bool,
    **dataset_options: Any,
) -> None:
    """Train a model on the slides of TABLE; run again to resume."""
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars
    from sacmil.training.config import DEFAULT_MODEL, make_configs
    from sacmil.training.job import DeviceConfig
    from sacmil.training.train import keep_last_epoch, train_fold

    if every_slide and fold is not None:
        raise click.UsageError("--fold and --all exclude each other; leave one out")
    values = read_config_values(config, recipe)
    name = model or values.get("model", DEFAULT_MODEL)
    seeds = [] if seed is None else [f"seed={seed}"]
    chosen = make_configs([name], values, [*overrides, *seeds])[name]
    if every_slide:
        chosen = _warn_if_changed(chosen, keep_last_epoch(chosen))
    found = load_dataset(table, every_slide=every_slide, **dataset_options)
    with progress_bars() as progress:
        train_fold(
            out,
            found.dataset.cohort,
            found.dataset.bags,
            found.folds,
            chosen,
            fold=fold or 0,
            device_config=DeviceConfig(device, cache),
            on_progress=progress,
            on_epoch=lambda line, epochs: progress(
                f"training {chosen.model}" + (f", stage {line.stage + 1}" if line.stage else ""),
                line.epoch,
                epochs,
                _format_epoch(line),
            ),
        )
    _print_results(out, every_slide=every_slide)


def _format_epoch(line: Any) -> str:
    val_auc = f", val AUC {line.val_auc:.3f}" if line.val_auc is not None else ""
    return f"loss {line.loss:.4f}{val_auc}"


def _warn_if_changed(config: TrainingConfig, changed: TrainingConfig) -> TrainingConfig:
    if changed is not config:
        click.echo(
            f"Warning: the recipe {config.recipe} chooses its epoch on a validation set, and "
            f"--all has none. The last of {changed.to_recipe().epochs} epochs is kept; set "
            "-o epochs=N to the number that cross-validation found best",
            err=True,
        )
    return changed


def _print_results(out: Path, *, every_slide: bool) -> None:
    from sacmil.card import read_card

    notes = read_card(out).training
    click.echo(f"{out}: {notes['model']}, epoch {notes['epoch']} of {notes['epochs']} kept")
    if every_slide:
        return
    from sacmil.cli._summary import print_summary
    from sacmil.results import read_predictions

    print_summary(read_predictions(out), data=str(out))
