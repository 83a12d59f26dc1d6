"""Options that train and crossval share: bags, folds and the configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sacmil.cli._cohort import cohort_options, get_option_name

if TYPE_CHECKING:
    from sacmil.cohorts.dataset import Dataset
    from sacmil.cohorts.splits import Fold

Function = TypeVar("Function", bound=Callable[..., Any])

_EXISTING = click.Path(exists=True, path_type=Path)

_OPTIONS = (
    click.option(
        "--bags",
        required=True,
        multiple=True,
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Folder of bags in any layout; repeatable.",
    ),
    click.option("--drop-missing", is_flag=True, help="Skip slides without a bag."),
    click.option(
        "--out", required=True, type=click.Path(path_type=Path), help="Run folder to write."
    ),
    click.option("--splits", type=_EXISTING, help="Splits to use instead of new ones."),
    click.option("--folds", type=click.IntRange(2), help="Number of new folds.  [default: 5]"),
    click.option("--split-seed", type=click.IntRange(0), help="Seed of new folds.  [default: 0]"),
    click.option(
        "--recipe",
        help="standard, paper, official, or another recipe of the model.  [default: standard]",
    ),
    click.option(
        "--config", type=_EXISTING, help="YAML file with model, options, recipe, training, …"
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
        show_default=True,
        type=click.Choice(["auto", "none", "memory", "gpu"]),
        help="Where to keep bags between epochs; gpu: on the training device.",
    ),
)


def training_options(function: Function) -> Function:
    """Add the options of a command that trains."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return cohort_options(function)


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
    from sacmil.cohorts.split_files import read_splits
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
    made = make_folds(
        dataset,
        folds or 5,
        seed=split_seed or 0,
        repeats=repeats or 1,
        preserve_sites=bool(columns["site"]),
    )
    return dataset, made


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
