"""Types of options, and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from sacmil.cohorts.cohort import Cohort
    from sacmil.cohorts.dataset import Dataset
    from sacmil.cohorts.splits import Fold

Command = TypeVar("Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
COUNT = click.IntRange(1)
NATURAL = click.IntRange(0)
POSITIVE = click.FloatRange(min=0, min_open=True)
ENGINES = ["local", "ray"]
DTYPES = ["float16", "float32"]


def option(
    name: str, text: str, kind: Any = None, *, to: str | None = None, **settings: Any
) -> Callable[[Command], Command]:
    """Return an option of a command.

    Args:
        name: on the command line.
        text: help.
        kind: type of its value, or a list of its values; None is the type of the default.
        to: argument of the command that gets the value, if the name differs.
        settings: further settings of ``click.option``.
    """
    names = (name,) if to is None else (name, to)
    values = click.Choice(kind) if isinstance(kind, list) else kind
    return click.option(*names, type=values, help=text, **settings)


def repeatable(
    name: str, text: str, kind: Any = None, **settings: Any
) -> Callable[[Command], Command]:
    """Return an option that may be given several times; arguments as of ``option``."""
    return option(name, text, kind, multiple=True, **settings)


def flag(name: str, text: str, *, to: str | None = None) -> Callable[[Command], Command]:
    """Return an option without a value; arguments as of ``option``."""
    return option(name, text, to=to, is_flag=True)


def join_options(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return one decorator that adds all these options, in this order."""

    def add_options(command: Command) -> Command:
        for add_option in reversed(options):
            command = add_option(command)
        return command

    return add_options


def device_option(default: str) -> Callable[[Command], Command]:
    """Return the option of the device that models run on."""
    return option("--device", "Device: auto, cpu, cuda:0, …", default=default)


address_option = option(
    "--address", "Ray cluster to use.  [default: RAY_ADDRESS, a running one, or a new one]"
)
allow_mismatch_option = flag(
    "--allow-mismatch", "Only warn if a bag's encoder or tile size differs from the model's."
)
download_option = flag("--download", "Download the encoder's weights.")
drop_missing_option = flag("--drop-missing", "Skip slides without a bag.")
slide_mpp_option = option(
    "--slide-mpp",
    "Microns per pixel of the slides, or a table with columns wsi,mpp.",
    metavar="X|FILE.csv",
)
weights_option = option("--weights", "File with the encoder's weights.", FILE)


def _parse_gpus(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> list[int] | None:
    if value is None:
        return None
    try:
        return [int(number) for number in value.split(",") if number.strip()]
    except ValueError:
        raise click.UsageError(f"--gpus {value!r}; expected numbers such as 0,1") from None


def gpus_option(text: str) -> Callable[[Command], Command]:
    """Return the option of the numbers of GPUs."""
    return option("--gpus", text, metavar="0,1", callback=_parse_gpus)


def parse_count_or_auto(
    context: click.Context, parameter: click.Parameter, value: str
) -> int | str:
    """Return a whole number from 1 up, or auto."""
    if value == "auto":
        return value
    if value.isdecimal() and int(value) > 0:
        return int(value)
    raise click.BadParameter(f"{value!r} is neither a whole number from 1 up nor auto")


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


def reject_given(options: Mapping[str, Any], sentence: str) -> None:
    """Reject the first of these options that was given.

    Args:
        options: values by Python name.
        sentence: what is wrong with it; {} stands for the option.
    """
    for name, value in options.items():
        if value not in (None, ()) and value is not False:
            raise click.UsageError(sentence.format(get_option_name(name)))


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


def _parse_names(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(","))
    if len(set(names)) < len(names) or not all(names):
        raise click.BadParameter(f"{value!r}; expected different names, as a,b,c")
    return names


def _parse_times(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[float, ...] | None:
    if value is None:
        return None
    try:
        return tuple(sorted(float(text) for text in value.split(",")))
    except ValueError as error:
        raise click.BadParameter(f"{value!r}; expected numbers, as 12,36,60") from error


cohort_options = join_options(
    option("--slide-column", "Column of slide names, if not found.", to="slide", metavar="NAME"),
    option(
        "--patient-column", "Column of patient names, if not found.", to="patient", metavar="NAME"
    ),
    option("--label-column", "Column of labels, if not found.", to="label", metavar="NAME"),
    option(
        "--classes",
        "Class names in order; other labels are an error.",
        metavar="A,B",
        callback=_parse_class_names,
    ),
    option("--slide-table", "STAMP's slide table (PATIENT, FILENAME).", EXISTING_FILE),
    option("--sheet", "Sheet of an Excel file to read.", metavar="NAME"),
    option(
        "--task",
        "What to predict: classification, regression, ordinal, multilabel, survival, or one of "
        "another package.  [default: classification]",
        metavar="KIND",
    ),
    option(
        "--target",
        "Columns of the numbers to predict (regression).",
        to="targets",
        metavar="A[,B]",
        callback=_parse_names,
    ),
    option(
        "--order",
        "Levels of the label column, lowest first (ordinal).",
        metavar="LOW,…,HIGH",
        callback=_parse_names,
    ),
    option(
        "--labels",
        "Columns of findings, each 1, 0 or empty (multilabel).",
        metavar="A,B",
        callback=_parse_names,
    ),
    option("--time", "Column of times (survival), if not found.", metavar="NAME"),
    option(
        "--event",
        "Column of the status (survival), if not found; 1 is an event unless its name says censor.",
        metavar="NAME",
    ),
    option(
        "--time-unit",
        "Unit of the times, if the column's name has none.",
        ["days", "weeks", "months", "years"],
        to="unit",
    ),
    option(
        "--horizons",
        "Times to report survival at.  [default: 1, 3 and 5 years]",
        metavar="T[,T]",
        callback=_parse_times,
    ),
    option(
        "--loss",
        "huber, mse or l1 (regression); corn or coral (ordinal); discrete or cox (survival).  "
        "[default: the first]",
        metavar="NAME",
    ),
    option(
        "--preserve",
        "Column of sites to keep in one fold; barcode: sites from TCGA barcodes.",
        to="site",
        metavar="COLUMN",
    ),
)
"""Options by the names of read_cohort's arguments."""
SURVIVAL_COLUMNS = ("time", "event", "unit", "horizons")
TASK_SETTINGS = ("task", "targets", "order", "labels", "loss", *SURVIVAL_COLUMNS)
"""Those of cohort_options that say what is predicted."""


def print_targets(cohort: Cohort) -> None:
    """Print what was read from the columns of the targets, for people to check."""
    if text := cohort.describe_targets():
        click.echo(text, err=True)


# --- evaluate and compare ------------------------------------------------------------------------

evaluation_options = join_options(
    option(
        "--level",
        "Confidence level; a difference is significant if p < 1 - level.",
        click.FloatRange(0, 0.9999, min_open=True),
        default=0.95,
    ),
    option("--draws", "Number of bootstrap resamples of patients.", COUNT, default=2000),
    option("--seed", "Seed of the resampling.", NATURAL, default=0),
    option(
        "--format",
        "Format of the printed table.",
        ["text", "markdown", "latex", "csv"],
        to="table_format",
        default="text",
    ),
    flag("--percent", "Print percentages with one decimal."),
    option("--out", "Folder to write report.html, tables and plots to.", FOLDER),
)


def check_can_report(out: Path | None) -> None:
    """Check before computing that a requested report can be written."""
    from sacmil.evaluation.plots import check_matplotlib

    if out is not None:
        check_matplotlib("the report")


# --- train and crossval --------------------------------------------------------------------------

training_options = join_options(
    cohort_options,
    repeatable(
        "--bags", "Folder of bags in any layout; repeatable.", EXISTING_FOLDER, required=True
    ),
    drop_missing_option,
    option("--out", "Run folder to write.", PATH, required=True),
    option("--splits", "Splits to use instead of new ones.", EXISTING),
    option("--folds", "Number of new folds.  [default: 5]", click.IntRange(2)),
    option("--split-seed", "Seed of new folds.  [default: 0]", NATURAL),
    option(
        "--recipe",
        "standard, paper, official, or another recipe of the model.  [default: standard]",
    ),
    option("--config", "YAML file with model, options, recipe, training, …", EXISTING),
    repeatable(
        "-o",
        "Training setting or model option, such as lr=2e-4; repeatable.",
        to="options",
        metavar="KEY=VALUE",
    ),
    option(
        "--cache",
        "Where to keep bags between epochs; gpu: on the training device.",
        ["auto", "none", "memory", "gpu"],
        default="auto",
    ),
)


def load_dataset(
    table: Path,
    bags: tuple[Path, ...],
    splits: Path | None,
    *,
    drop_missing: bool,
    every_slide: bool = False,
    config: Path | None = None,
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
    columns = add_configured_task(columns, config)
    index = BagIndex(bags)
    find_problems = partial(index.find_problems, allow_missing=drop_missing)
    cohort = read_cohort(table, extra_check=find_problems, **columns)
    dataset = Dataset(cohort, index, drop_missing=drop_missing)
    print_targets(dataset.cohort)
    if every_slide:
        return dataset, None
    if splits is not None:
        return dataset, [fold.restrict_to(dataset.cohort) for fold in read_splits(splits, cohort)]
    numbers: dict[str, Any] = {"seed": split_seed or 0, "repeats": repeats or 1}
    return dataset, make_folds(dataset, folds or 5, preserve_sites=bool(columns["site"]), **numbers)


def add_configured_task(columns: dict[str, Any], config: Path | None) -> dict[str, Any]:
    """Return the arguments of read_cohort with the task of a configuration, if none was given.

    Other settings that were given, such as a loss, win over its own.
    """
    from sacmil.cohorts.cohort import KIND_OF_SETTING
    from sacmil.results.task_card import read_task_card
    from sacmil.training.config import read_config

    if config is None or columns["task"] is not None:
        return columns
    configured = read_config(config).get("task")
    known = read_task_card(config.parent)  # of the run whose configuration it is
    if configured is None and known is not None:
        configured = {"kind": known.kind, **known.settings}
    kinds = {KIND_OF_SETTING.get(name) for name in TASK_SETTINGS if columns[name] is not None}
    kind = configured.get("kind") if isinstance(configured, dict) else configured
    if isinstance(kind, str) and kinds - {None, kind}:
        return columns  # options of another kind of target
    return {**columns, "task": configured}


def _check_fold_options(given: dict[str, Any], splits: Path | None, *, every_slide: bool) -> None:
    """Reject options of new folds where no folds are made, rather than ignore them."""
    if every_slide and splits is not None:
        raise click.UsageError("--splits and --all exclude each other; leave one out")
    if not every_slide and splits is None:
        return
    other = "--all" if every_slide else "--splits"
    reject_given(given, f"{{}} is for new folds, which {other} does not make; leave it out")
