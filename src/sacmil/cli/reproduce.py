"""``sacmil reproduce``: reproduce the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli import _options as opt
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
@opt.option(
    "--out",
    "Folder for tables, figures and runs; tables in one folder share trained models.",
    opt.FOLDER,
    default="reproduced",
)
@opt.repeatable(
    "--data",
    "A dataset's label table and folder of bags; repeatable. Without it, synthetic cohorts "
    "are used.",
    (click.Choice(list(DATASETS)), opt.PATH, opt.PATH),
    metavar="DATASET TABLE BAGS",
)
@opt.repeatable(
    "--dataset", "Only this dataset of the table; repeatable.", list(DATASETS), to="only"
)
@opt.flag("--quick", "Use 20 small slides, 2 epochs and 2 folds.")
@opt.option("--epochs", "Epochs per training.  [default: 200]", opt.COUNT)
@opt.option("--folds", "Folds of the cross-validation.  [default: 5]", click.IntRange(2))
@opt.option("--seeds", "Seeds per fold.  [default: 1]", opt.COUNT)
@opt.option(
    "--task",
    "Task of the synthetic cohort.  [default: the one most like each dataset]",
    ["metastasis", "subtype", "cluster", "margin"],
)
@opt.option(
    "--difficulty",
    "Difficulty of the synthetic cohort.  [default: medium]",
    ["easy", "medium", "hard"],
)
@opt.option("--slides", "Slides in the synthetic cohort.  [default: 200]", click.IntRange(4))
@opt.option(
    "--instances",
    "Instances of a synthetic slide.  [default: 500 5000]",
    (opt.COUNT, opt.COUNT),
    metavar="MIN MAX",
)
@opt.repeatable(
    "--device", "Device: auto, cpu, cuda:0, …; repeatable.  [default: auto]", to="devices"
)
@opt.option("--workers", "Jobs at once per device.  [default: 1]", opt.COUNT)
@opt.option("--engine", "Train on this machine or on Ray.  [default: local]", opt.ENGINES)
@opt.address_option
@opt.option(
    "--truth",
    "For heatmaps: annotations, as in sacmil heatmap.  [default: labels in bags]",
    opt.EXISTING,
)
@opt.option("--images", "For heatmaps: folder of the slides to draw on.", opt.EXISTING_FOLDER)
def command(experiment: str, out: Path, **options: Any) -> None:
    """Reproduce a table or figure of the paper; run again to resume."""
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars

    if experiment != "heatmaps":
        unused = {name: options[name] for name in ("truth", "images")}
        opt.reject_given(unused, "{} is for heatmaps; leave it out")
    with progress_bars() as progress:
        request = _make_request(options, progress)
        for path in experiments.run_experiment(experiment, out, request):
            click.echo(path.read_text(encoding="utf-8") if path.suffix == ".txt" else path)


def _make_request(options: dict[str, Any], progress: ProgressCallback) -> ReproduceRequest:
    """Return the request; options that are not given keep their default."""
    quick = QUICK_DEFAULTS if options.pop("quick") else {}
    _check_data(options)
    opt.check_engine(options["engine"], options["address"])
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
    if names:
        unused = {name: options[name] for name in SYNTHETIC_OPTIONS}
        sentence = "{} is for synthetic cohorts, which are not used with --data"
        opt.reject_given(unused, f"{sentence}; leave one of the two out")
