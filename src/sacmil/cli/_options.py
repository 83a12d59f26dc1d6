"""Types of options, and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from sacmil.cohorts.dataset import Dataset
    from sacmil.cohorts.splits import Fold

Command = TypeVar("Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
POSITIVE = click.FloatRange(min=0, min_open=True)
ENGINES = click.Choice(["local", "ray"])
DTYPES = click.Choice(["float16", "float32"])


def join_options(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return one decorator that adds all these options, in this order."""

    def add_options(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add_options


def device_option(default: str) -> Callable[[Command], Command]:
    """Return the option of the device that models run on."""
    return click.option("--device", default=default, help="Device: auto, cpu, cuda:0, …")


address_option = click.option(
    "--address", help="Ray cluster to use.  [default: RAY_ADDRESS, a running one, or a new one]"
)
allow_mismatch_option = click.option(
    "--allow-mismatch",
    is_flag=True,
    help="Only warn if a bag's encoder or tile size differs from the model's.",
)
download_option = click.option("--download", is_flag=True, help="Download the encoder's weights.")
drop_missing_option = click.option(
    "--drop-missing", is_flag=True, help="Skip slides without a bag."
)
slide_mpp_option = click.option(
    "--slide-mpp",
    metavar="X|FILE.csv",
    help="Microns per pixel of the slides, or a table with columns wsi,mpp.",
)
weights_option = click.option("--weights", type=FILE, help="File with the encoder's weights.")


def check_engine(engine: str | None, address: str | None) -> None:
    """Reject the address of a Ray cluster for another engine."""
    if address and engine != "ray":
        raise click.UsageError("--address names a Ray cluster; add --engine ray")


def get_option_name(parameter: str) -> str:
    """Return the option of the running command that has a parameter name.

    Args:
        parameter: Python name, such as label.
    """
    parameters = click.get_current_context().command.params
    return next(found.opts[0] for found in parameters if found.name == parameter)


# --- the table of a cohort -----------------------------------------------------------------------


def _parse_class_names(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(","))
    if len(set(names)) < 2 or len(set(names)) < len(names) or not all(names):
        raise click.BadParameter(f"{value!r}; expected two or more different names, as a,b,c")
    return names


cohort_options = join_options(
    click.option(
        "--slide-column", "slide", metavar="NAME", help="Column of slide names, if not found."
    ),
    click.option(
        "--patient-column", "patient", metavar="NAME", help="Column of patient names, if not found."
    ),
    click.option("--label-column", "label", metavar="NAME", help="Column of labels, if not found."),
    click.option(
        "--classes",
        metavar="A,B",
        callback=_parse_class_names,
        help="Class names in order; other labels are an error.",
    ),
    click.option(
        "--slide-table", type=EXISTING_FILE, help="STAMP's slide table (PATIENT, FILENAME)."
    ),
    click.option("--sheet", metavar="NAME", help="Sheet of an Excel file to read."),
    click.option(
        "--preserve",
        "site",
        metavar="COLUMN",
        help="Column of sites to keep in one fold; barcode: sites from TCGA barcodes.",
    ),
)
"""Options by the names of read_cohort's arguments."""


# --- evaluate and compare ------------------------------------------------------------------------

evaluation_options = join_options(
    click.option(
        "--level",
        default=0.95,
        type=click.FloatRange(0, 0.9999, min_open=True),
        help="Confidence level; a difference is significant if p < 1 - level.",
    ),
    click.option(
        "--draws",
        default=2000,
        type=click.IntRange(1),
        help="Number of bootstrap resamples of patients.",
    ),
    click.option("--seed", default=0, type=click.IntRange(0), help="Seed of the resampling."),
    click.option(
        "--format",
        "table_format",
        default="text",
        type=click.Choice(["text", "markdown", "latex", "csv"]),
        help="Format of the printed table.",
    ),
    click.option("--percent", is_flag=True, help="Print percentages with one decimal."),
    click.option("--out", type=FOLDER, help="Folder to write report.html, tables and plots to."),
)


def check_metric_name(name: str, known: Sequence[str]) -> None:
    """Reject an unknown name and suggest a similar one."""
    from sacmil.errors import suggest_names

    if name not in known:
        raise click.BadParameter(f"there is no metric {name!r}; {suggest_names(name, known)}")


def check_can_report(out: Path | None) -> None:
    """Check before computing that a requested report can be written."""
    from sacmil.evaluation.plots import check_matplotlib

    if out is not None:
        check_matplotlib("the report")


# --- train and crossval --------------------------------------------------------------------------

training_options = join_options(
    cohort_options,
    click.option(
        "--bags",
        required=True,
        multiple=True,
        type=EXISTING_FOLDER,
        help="Folder of bags in any layout; repeatable.",
    ),
    drop_missing_option,
    click.option("--out", required=True, type=PATH, help="Run folder to write."),
    click.option("--splits", type=EXISTING, help="Splits to use instead of new ones."),
    click.option("--folds", type=click.IntRange(2), help="Number of new folds.  [default: 5]"),
    click.option("--split-seed", type=click.IntRange(0), help="Seed of new folds.  [default: 0]"),
    click.option(
        "--recipe",
        help="standard, paper, official, or another recipe of the model.  [default: standard]",
    ),
    click.option(
        "--config", type=EXISTING, help="YAML file with model, options, recipe, training, …"
    ),
    click.option(
        "-o",
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Training setting or model option, such as lr=2e-4; repeatable.",
    ),
    click.option(
        "--cache",
        default="auto",
        type=click.Choice(["auto", "none", "memory", "gpu"]),
        help="Where to keep bags between epochs; gpu: on the training device.",
    ),
)


def load_dataset(
    table: Path,
    bags: tuple[Path, ...],
    splits: Path | None,
    *,
    drop_missing: bool,
    every_slide: bool = False,
    folds: int | None = None,
    split_seed: int | None = None,
    repeats: int | None = None,
    **columns: Any,
) -> tuple[Dataset, list[Fold] | None]:
    """Load and check cohort, bags and folds; no folds if every slide is for training."""
    from sacmil.cohorts.bags import BagIndex
    from sacmil.cohorts.cohort import read_cohort
    from sacmil.cohorts.dataset import Dataset
    from sacmil.cohorts.split_cohort import read_splits
    from sacmil.cohorts.splits import make_folds

    new_folds = {"folds": folds, "split_seed": split_seed, "repeats": repeats}
    _check_fold_options({**new_folds, "site": columns["site"]}, splits, every_slide=every_slide)
    index = BagIndex(bags)
    find_problems = partial(index.find_problems, allow_missing=drop_missing)
    cohort = read_cohort(table, extra_check=find_problems, **columns)
    dataset = Dataset(cohort, index, drop_missing=drop_missing)
    if every_slide:
        return dataset, None
    if splits is not None:
        return dataset, [fold.restrict_to(dataset.cohort) for fold in read_splits(splits, cohort)]
    numbers: dict[str, Any] = {"seed": split_seed or 0, "repeats": repeats or 1}
    return dataset, make_folds(dataset, folds or 5, preserve_sites=bool(columns["site"]), **numbers)


def _check_fold_options(given: dict[str, Any], splits: Path | None, *, every_slide: bool) -> None:
    """Reject options of new folds where no folds are made, rather than ignore them."""
    if every_slide and splits is not None:
        raise click.UsageError("--splits and --all exclude each other; leave one out")
    if not every_slide and splits is None:
        return
    other = "--all" if every_slide else "--splits"
    for name, value in given.items():
        if value is not None:
            raise click.UsageError(
                f"{get_option_name(name)} is for new folds, which {other} does not make; "
                "leave it out"
            )
