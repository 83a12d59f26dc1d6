"""``sacmil crossval``: cross-validate models on the same folds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._training import load_dataset, read_config_values, training_options

if TYPE_CHECKING:
    from sacmil.training.config import TrainingConfig
    from sacmil.training.cross_validate import CrossValidationResult


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
    overrides: tuple[str, ...],
    cache: Any,
    **dataset_options: Any,
) -> None:
    """Train and test models on every fold of TABLE; run again to resume."""
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars
    from sacmil.training.config import make_configs
    from sacmil.training.cross_validate import TrainingResources, cross_validate

    if address and engine != "ray":
        raise click.UsageError("--address names a Ray cluster; add --engine ray")
    values = read_config_values(config, recipe)
    configs = make_configs(_choose_models(models, values), values, overrides)
    every_seed = _make_seeds(configs, seeds)
    resources = TrainingResources(
        _choose_devices(gpus, per_gpu, workers), None, cache, engine, address
    )
    found = load_dataset(table, repeats=repeats, **dataset_options)
    with progress_bars() as progress:
        done = cross_validate(
            out,
            found.dataset.cohort,
            found.dataset.bags,
            found.folds,
            configs,
            seeds=every_seed,
            resources=resources,
            on_progress=progress,
        )
    _print_results(out, done)


def _choose_models(models: str | None, values: dict[str, Any]) -> list[str]:
    from sacmil import list_models
    from sacmil.training.config import DEFAULT_MODEL

    if models == "all":
        return list_models()
    if models is not None:
        return list(dict.fromkeys(name.strip() for name in models.split(",")))
    sections = [name for name, value in values.items() if isinstance(value, dict)]
    several = sections and not {"options", "training"} & set(sections)
    return sections if several else [values.get("model", DEFAULT_MODEL)]


def _make_seeds(configs: Mapping[str, TrainingConfig], count: int) -> range:
    """Return consecutive seeds, beginning with the seed of all configurations."""
    first = {config.seed for config in configs.values()}
    if len(first) > 1:
        listed = ", ".join(f"{name} {config.seed}" for name, config in configs.items())
        raise click.UsageError(f"models have different seeds ({listed}); give -o seed=N for all")
    return range(min(first), min(first) + count)


def _choose_devices(gpus: str | None, per_gpu: int, workers: int | None) -> tuple[str, ...]:
    """Return the device of each worker."""
    import torch

    if gpus is not None:
        numbers = [number.strip() for number in gpus.split(",")]
        if not all(number.isdecimal() for number in numbers):
            raise click.UsageError(f"--gpus {gpus}; expected numbers such as 0,1")
    else:
        numbers = [str(n) for n in range(torch.cuda.device_count())] if workers is None else []
    return tuple(f"cuda:{n}" for n in numbers) * per_gpu or ("cpu",) * (workers or 1)


def _print_results(out: Path, result: CrossValidationResult) -> None:
    from sacmil.cli._summary import print_summary

    if result.predictions is not None:
        print_summary(result.predictions, data=str(out))
    for job, reason in result.failures.items():
        click.echo(f"Error: {job}: {reason}", err=True)
    if result.failures:
        click.echo(
            f"{len(result.failures)} jobs failed; run the command again to retry them", err=True
        )
        raise SystemExit(1)
