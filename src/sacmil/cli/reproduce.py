"""``sacmil reproduce``: the paper's tables and figures, made anew."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

import sacmil.reproduce
from sacmil.reproduce._paper import DATASETS

if TYPE_CHECKING:
    from sacmil.cli._progress import ProgressCallback
    from sacmil.reproduce._request import ReproduceRequest

SYNTHETIC_OPTIONS = ("task", "difficulty", "slides", "instances")
"""Options that make the stand-in."""
QUICK_DEFAULTS: dict[str, Any] = {"epochs": 2, "folds": 2, "slides": 20, "instances": (100, 200)}
"""What --quick means where an option does not say otherwise."""


def _find_experiments() -> dict[str, ModuleType]:
    """Every public file of the experiments folder by its NAME; none loads torch by itself."""
    found = (module.name for module in pkgutil.iter_modules(sacmil.reproduce.__path__))
    modules = (
        importlib.import_module(f"sacmil.reproduce.{name}")
        for name in found
        if not name.startswith("_")
    )
    return {module.NAME: module for module in modules}


@click.command()
@click.argument("experiment", type=click.Choice(sorted(_find_experiments())))
@click.option(
    "--out",
    default="reproduced",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for tables, figures and runs; tables in one folder share what is trained.",
)
@click.option(
    "--data",
    type=(click.Choice(list(DATASETS)), click.Path(path_type=Path), click.Path(path_type=Path)),
    metavar="DATASET TABLE BAGS",
    multiple=True,
    help="Your copy of a dataset: its labels and its folder of bags. May be repeated; without "
    "any, synthetic cohorts stand in.",
)
@click.option(
    "--dataset",
    "only",
    type=click.Choice(list(DATASETS)),
    multiple=True,
    help="Only this part of the table. May be repeated.",
)
@click.option("--quick", is_flag=True, help="A first look: 20 small slides, 2 epochs, 2 folds.")
@click.option("--epochs", type=click.IntRange(1), help="Of every training.  [default: 200]")
@click.option("--folds", type=click.IntRange(2), help="Of the cross-validation.  [default: 5]")
@click.option("--seeds", type=click.IntRange(1), help="Trainings of every fold.  [default: 1]")
@click.option(
    "--task",
    type=click.Choice(["metastasis", "subtype", "cluster", "margin"]),
    help="Of the synthetic cohort.  [default: the one most like each dataset]",
)
@click.option(
    "--difficulty",
    type=click.Choice(["easy", "medium", "hard"]),
    help="Of the synthetic cohort.  [default: medium]",
)
@click.option("--slides", type=click.IntRange(4), help="Of the synthetic cohort.  [default: 200]")
@click.option(
    "--instances",
    type=(click.IntRange(1), click.IntRange(1)),
    metavar="FEWEST MOST",
    help="Of a synthetic slide.  [default: 500 5000]",
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    help="auto, cpu, cuda:0, … May be repeated.  [default: auto]",
)
@click.option(
    "--workers", type=click.IntRange(1), help="Trainings at once on each device.  [default: 1]"
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    help="Processes here, or Ray.  [default: local]",
)
@click.option(
    "--address",
    help="Of the Ray cluster.  [default: RAY_ADDRESS, one that runs here, or a new one]",
)
@click.option(
    "--truth",
    type=click.Path(exists=True, path_type=Path),
    help="Of heatmaps: outlines, as sacmil heatmap reads them.  [default: labels in bags]",
)
@click.option(
    "--images",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Of heatmaps: folder of the slides, to draw on.",
)
def command(experiment: str, out: Path, **options: Any) -> None:
    """Make a table or figure of the paper anew; the same command again goes on where it ended."""
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars

    if experiment != "heatmaps" and (options["truth"] or options["images"]):
        raise click.UsageError("--truth and --images are for heatmaps; leave them out")
    with progress_bars() as progress:
        request = _make_request(options, progress)
        for path in _find_experiments()[experiment].run(out, request):
            click.echo(path.read_text(encoding="utf-8") if path.suffix == ".txt" else path)


def _make_request(options: dict[str, Any], progress: ProgressCallback) -> ReproduceRequest:
    """What was asked for; what was not keeps the default that Request has."""
    from sacmil.reproduce._request import DatasetPaths, ReproduceRequest, SyntheticSettings

    quick = QUICK_DEFAULTS if options.pop("quick") else {}
    _check_data(options)
    if options["address"] and options["engine"] != "ray":
        raise click.UsageError("--address is of a Ray cluster; give --engine ray")
    given = {**quick, **{name: value for name, value in options.items() if value}}
    data = {dataset: DatasetPaths(table, bags) for dataset, table, bags in given.pop("data", ())}
    synthetic = SyntheticSettings(
        **{name: given.pop(name) for name in SYNTHETIC_OPTIONS if name in given}
    )
    return ReproduceRequest(data=data, synthetic=synthetic, progress=progress, **given)


def _check_data(options: dict[str, Any]) -> None:
    """Refuse a dataset given twice, and a stand-in asked for where there are data."""
    names = [dataset for dataset, _, _ in options["data"]]
    if len(set(names)) < len(names):
        raise click.UsageError("--data names a dataset twice; expected one table and one folder")
    wrong = [name for name in SYNTHETIC_OPTIONS if options[name]]
    if names and wrong:
        raise click.UsageError(
            f"--{wrong[0]} is about synthetic cohorts, which stand in where no --data is given; "
            "leave one of the two out"
        )
