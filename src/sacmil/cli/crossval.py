"""``sacmil crossval``: cross-validate models on the same folds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._option_names import name_options
from sacmil.cli._training import load_dataset, training_options

if TYPE_CHECKING:
    from sacmil.results.run import Run


@click.command()
@click.argument("table", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--models",
    help="Comma-separated names, or all.  [default: those of --config, or sac_mil_local]",
)
@click.option(
    "--seeds",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Number of seeds, counted from the configuration's seed.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    help="Number of times to make new folds.  [default: 1]",
)
@click.option("--gpus", help="GPU numbers, such as 0,1.  [default: all]")
@click.option(
    "--per-gpu", default=1, show_default=True, type=click.IntRange(1), help="Jobs at once per GPU."
)
@click.option("--workers", type=click.IntRange(1), help="Jobs at once on the CPU.  [default: 1]")
@click.option(
    "--engine",
    default="local",
    show_default=True,
    type=click.Choice(["local", "ray"]),
    help="Run jobs on this machine or on Ray.",
)
@click.option(
    "--address",
    help="Ray cluster to use.  [default: RAY_ADDRESS, a running one, or a new one]",
)
@training_options
def command(
    table: Path,
    models: str | None,
    seeds: int,
    repeats: int | None,
    gpus: str | None,
    per_gpu: int,
    workers: int | None,
    engine: Any,
    address: str | None,
    out: Path,
    recipe: str | None,
    config: Path | None,
    options: tuple[str, ...],
    cache: Any,
    **dataset_options: Any,
) -> None:
    """Train and test models on every fold of TABLE; run again to resume."""
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars
    from sacmil.training.config import resolve_configs
    from sacmil.training.train import cross_validate

    if address and engine != "ray":
        raise click.UsageError("--address names a Ray cluster; add --engine ray")
    names, devices = _parse_models(models), _parse_devices(gpus, workers)
    settings: dict[str, Any] = {"config": config, "recipe": recipe, "options": options}
    resolve_configs(names, **settings)  # reject wrong ones before reading bags
    dataset, folds = load_dataset(table, repeats=repeats, **dataset_options)
    assert folds is not None
    with progress_bars() as progress:
        run = cross_validate(
            dataset,
            names,
            out=out,
            folds=folds,
            seeds=seeds,
            devices=devices,
            per_gpu=per_gpu,
            cache=cache,
            engine=engine,
            address=address,
            on_progress=progress,
            **settings,
        )
    _print_results(run)


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


def _print_results(run: Run) -> None:
    from sacmil.cli._summary import print_summary

    if run.has_predictions:
        print_summary(run.predictions, data=str(run.folder))
    for job, reason in run.failures.items():
        click.echo(f"Error: {job}: {name_options(reason)}", err=True)
    if run.failures:
        click.echo(
            f"{len(run.failures)} jobs failed; run the command again to retry them", err=True
        )
        raise SystemExit(1)
