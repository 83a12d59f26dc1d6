"""``sacmil crossval``: cross-validate models on the same folds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sacmil.cli._messages import name_options, print_summary
from sacmil.cli._options import (
    ENGINES,
    EXISTING_FILE,
    address_option,
    check_engine,
    load_dataset,
    training_options,
)

_JOB_OPTIONS = ("out", "seeds", "per_gpu", "cache", "engine", "address")


@click.command()
@click.argument("table", type=EXISTING_FILE)
@click.option(
    "--models",
    help="Comma-separated names, or all.  [default: those of --config, or sac_mil_local]",
)
@click.option(
    "--seeds",
    default=1,
    type=click.IntRange(1),
    help="Number of seeds, counted from the configuration's seed.",
)
@click.option(
    "--repeats", type=click.IntRange(1), help="Number of times to make new folds.  [default: 1]"
)
@click.option("--gpus", help="GPU numbers, such as 0,1.  [default: all]")
@click.option("--per-gpu", default=1, type=click.IntRange(1), help="Jobs at once per GPU.")
@click.option("--workers", type=click.IntRange(1), help="Jobs at once on the CPU.  [default: 1]")
@click.option("--engine", default="local", type=ENGINES, help="Run jobs on this machine or on Ray.")
@address_option
@training_options
def command(
    table: Path, models: str | None, gpus: str | None, workers: int | None, **given: Any
) -> None:
    """Train and test models on every fold of TABLE; run again to resume."""
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars
    from sacmil.training.config import resolve_configs
    from sacmil.training.train import cross_validate

    check_engine(given["engine"], given["address"])
    names, devices = _parse_models(models), _parse_devices(gpus, workers)
    settings = {name: given.pop(name) for name in ("config", "recipe", "options")}
    jobs = {name: given.pop(name) for name in _JOB_OPTIONS}
    resolve_configs(names, **settings)  # reject wrong ones before reading bags
    dataset, folds = load_dataset(table, **given)
    assert folds is not None
    with progress_bars() as progress:
        run = cross_validate(
            dataset, names, folds=folds, devices=devices, on_progress=progress, **jobs, **settings
        )
    if run.has_predictions:
        print_summary(run.predictions, data=str(run.folder))
    for job, reason in run.failures.items():
        click.echo(f"Error: {job}: {name_options(reason)}", err=True)
    if run.failures:
        click.echo(
            f"{len(run.failures)} jobs failed; run the command again to retry them", err=True
        )
        raise SystemExit(1)


def _parse_models(models: str | None) -> list[str] | None:
    from sacmil import list_models

    if models == "all":
        return list_models()
    return None if models is None else [name.strip() for name in models.split(",")]


def _parse_devices(gpus: str | None, workers: int | None) -> str | list[str]:
    """Return the device of each job at a time; auto takes all GPUs, or the CPU."""
    if gpus is None:
        return "auto" if workers is None else ["cpu"] * workers
    numbers = [number.strip() for number in gpus.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise click.UsageError(f"--gpus {gpus}; expected numbers such as 0,1")
    return [f"cuda:{number}" for number in numbers]
