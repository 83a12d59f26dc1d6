"""``sacmil reproduce``: reproduce the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._options import (
    ENGINES,
    EXISTING,
    EXISTING_FOLDER,
    FOLDER,
    PATH,
    address_option,
    check_engine,
)
from sacmil.reproduce import experiments
from sacmil.reproduce._paper import DATASETS
from sacmil.reproduce.experiments import DatasetPaths, ReproduceRequest, SyntheticSettings

if TYPE_CHECKING:
    from sacmil.arguments import ProgressCallback

SYNTHETIC_OPTIONS = ("task", "difficulty", "slides", "instances")
"""Options of synthetic cohorts."""
QUICK_DEFAULTS: dict[str, Any] = {"epochs": 2, "folds": 2, "slides": 20, "instances": (100, 200)}
"""Values of --quick for options that are not given."""


@click.command()
@click.argument("experiment", type=click.Choice(experiments.list_experiments()))
@click.option(
    "--out",
    default="reproduced",
    type=FOLDER,
    help="Folder for tables, figures and runs; tables in one folder share trained models.",
)
@click.option(
    "--data",
    type=(click.Choice(list(DATASETS)), PATH, PATH),
    metavar="DATASET TABLE BAGS",
    multiple=True,
    help="A dataset's label table and folder of bags; repeatable. Without it, synthetic cohorts "
    "are used.",
)
@click.option(
    "--dataset",
    "only",
    type=click.Choice(list(DATASETS)),
    multiple=True,
    help="Only this dataset of the table; repeatable.",
)
@click.option("--quick", is_flag=True, help="Use 20 small slides, 2 epochs and 2 folds.")
@click.option("--epochs", type=click.IntRange(1), help="Epochs per training.  [default: 200]")
@click.option(
    "--folds", type=click.IntRange(2), help="Folds of the cross-validation.  [default: 5]"
)
@click.option("--seeds", type=click.IntRange(1), help="Seeds per fold.  [default: 1]")
@click.option(
    "--task",
    type=click.Choice(["metastasis", "subtype", "cluster", "margin"]),
    help="Task of the synthetic cohort.  [default: the one most like each dataset]",
)
@click.option(
    "--difficulty",
    type=click.Choice(["easy", "medium", "hard"]),
    help="Difficulty of the synthetic cohort.  [default: medium]",
)
@click.option(
    "--slides", type=click.IntRange(4), help="Slides in the synthetic cohort.  [default: 200]"
)
@click.option(
    "--instances",
    type=(click.IntRange(1), click.IntRange(1)),
    metavar="MIN MAX",
    help="Instances of a synthetic slide.  [default: 500 5000]",
)
@click.option(
    "--device",
    "devices",
    multiple=True,
    help="Device: auto, cpu, cuda:0, …; repeatable.  [default: auto]",
)
@click.option("--workers", type=click.IntRange(1), help="Jobs at once per device.  [default: 1]")
@click.option("--engine", type=ENGINES, help="Train on this machine or on Ray.  [default: local]")
@address_option
@click.option(
    "--truth",
    type=EXISTING,
    help="For heatmaps: annotations, as in sacmil heatmap.  [default: labels in bags]",
)
@click.option(
    "--images", type=EXISTING_FOLDER, help="For heatmaps: folder of the slides to draw on."
)
def command(experiment: str, out: Path, **options: Any) -> None:
    """Reproduce a table or figure of the paper; run again to resume."""
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars

    if experiment != "heatmaps" and (options["truth"] or options["images"]):
        raise click.UsageError("--truth and --images are for heatmaps; leave them out")
    with progress_bars() as progress:
        request = _make_request(options, progress)
        for path in experiments.run_experiment(experiment, out, request):
            click.echo(path.read_text(encoding="utf-8") if path.suffix == ".txt" else path)


def _make_request(options: dict[str, Any], progress: ProgressCallback) -> ReproduceRequest:
    """Return the request; options that are not given keep their default."""
    quick = QUICK_DEFAULTS if options.pop("quick") else {}
    _check_data(options)
    check_engine(options["engine"], options["address"])
    given = {**quick, **{name: value for name, value in options.items() if value}}
    data = {dataset: DatasetPaths(table, bags) for dataset, table, bags in given.pop("data", ())}
    synthetic = SyntheticSettings(
        **{name: given.pop(name) for name in SYNTHETIC_OPTIONS if name in given}
    )
    return ReproduceRequest(data=data, synthetic=synthetic, progress=progress, **given)


def _check_data(options: dict[str, Any]) -> None:
    """Reject a dataset given twice, and synthetic options together with data."""
    names = [dataset for dataset, _, _ in options["data"]]
    if len(set(names)) < len(names):
        raise click.UsageError(
            "--data names a dataset twice; expected one table and one folder per dataset"
        )
    wrong = [name for name in SYNTHETIC_OPTIONS if options[name]]
    if names and wrong:
        raise click.UsageError(
            f"--{wrong[0]} is for synthetic cohorts, which are not used with --data; "
            "leave one of the two out"
        )
