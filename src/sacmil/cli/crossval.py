"""``sacmil crossval``: cross-validate models on the same folds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sacmil.cli import _options as opt
from sacmil.cli._messages import exit_with_errors, print_summary

_JOB_OPTIONS = ("out", "seeds", "per_gpu", "cache", "engine", "address")


@click.command()
@click.argument("table", type=opt.EXISTING_FILE)
@opt.option(
    "--models", "Comma-separated names, or all.  [default: those of --config, or sac_mil_near_far]"
)
@opt.option(
    "--seeds", "Number of seeds, counted from the configuration's seed.", opt.COUNT, default=1
)
@opt.option("--repeats", "Number of times to make new folds.  [default: 1]", opt.COUNT)
@opt.gpus_option("GPU numbers.  [default: all]")
@opt.option(
    "--per-gpu",
    "Jobs at once per GPU, or auto: one more as long as all get faster.",
    metavar="COUNT|auto",
    default="1",
    callback=opt.parse_count_or_auto,
)
@opt.option("--workers", "Jobs at once on the CPU.  [default: 1]", opt.COUNT)
@opt.option("--engine", "Run jobs on this machine or on Ray.", opt.ENGINES, default="local")
@opt.address_option
@opt.training_options
def command(
    table: Path, models: str | None, gpus: list[int] | None, workers: int | None, **given: Any
) -> None:
    """Train and test models on every fold of TABLE; run again to resume."""
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars
    from sacmil.training.config import resolve_configs
    from sacmil.training.train import cross_validate

    opt.check_engine(given["engine"], given["address"])
    names, devices = _parse_models(models), _list_devices(gpus, workers)
    settings = {name: given.pop(name) for name in ("config", "recipe", "options")}
    jobs = {name: given.pop(name) for name in _JOB_OPTIONS}
    resolve_configs(names, **settings)  # reject wrong ones before reading bags
    dataset, folds = opt.load_dataset(table, config=settings["config"], **given)
    assert folds is not None
    with progress_bars() as progress:
        run = cross_validate(
            dataset, names, folds=folds, devices=devices, on_progress=progress, **jobs, **settings
        )
    if run.has_predictions:
        print_summary(run.predictions, data=str(run.folder))
    if failed := len(run.failures):
        click.echo(f"{failed} jobs failed; run the command again to retry them", err=True)
    exit_with_errors(f"{job}: {reason}" for job, reason in run.failures.items())


def _parse_models(models: str | None) -> list[str] | None:
    from sacmil import list_models

    if models == "all":
        return list_models()
    return None if models is None else [name.strip() for name in models.split(",")]


def _list_devices(gpus: list[int] | None, workers: int | None) -> str | list[str]:
    """Return the device of each job at a time; auto takes all GPUs, or the CPU."""
    if gpus is None:
        return "auto" if workers is None else ["cpu"] * workers
    return [f"cuda:{number}" for number in gpus]
