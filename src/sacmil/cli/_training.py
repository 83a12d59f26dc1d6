"""Options that train and crossval share: bags, folds and the configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from sacmil.cli._cohort import cohort_options, read_cohort_table

if TYPE_CHECKING:
    from sacmil.cohorts.cohort import Cohort
    from sacmil.cohorts.dataset import Dataset
    from sacmil.cohorts.splits import Fold

Function = TypeVar("Function", bound=Callable[..., Any])

_EXISTING = click.Path(exists=True, path_type=Path)

_OPTIONS = (
    click.option(
        "--bags",
        "folders",
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
        "overrides",
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


class DatasetFolds(NamedTuple):
    """A dataset and its folds."""

    dataset: Dataset
    folds: list[Fold]


def load_dataset(
    table: Path,
    folders: tuple[Path, ...],
    splits: Path | None,
    *,
    drop_missing: bool,
    every_slide: bool = False,
    folds: int | None = None,
    split_seed: int | None = None,
    repeats: int | None = None,
    **columns: Any,
) -> DatasetFolds:
    """Load and check cohort, bags and folds."""
    from sacmil.cohorts.bag_index import BagIndex
    from sacmil.cohorts.dataset import Dataset

    new = {"folds": folds, "split_seed": split_seed, "repeats": repeats}
    _check_fold_options(
        {**new, "preserve": columns.get("preserve")}, splits, every_slide=every_slide
    )
    index = BagIndex(folders)
    find_problems = partial(index.find_problems, allow_missing=drop_missing)
    full_cohort = read_cohort_table(table, extra_check=find_problems, **columns)
    dataset = Dataset(full_cohort, index, drop_missing=drop_missing)
    cohort = dataset.cohort
    if splits is None:
        by_site = bool(columns.get("preserve"))
        new_folds = _make_folds(cohort, by_site=by_site, every_slide=every_slide, **new)
        return DatasetFolds(dataset, new_folds)
    from sacmil.cohorts.split_files import read_splits

    folds_of_file = [fold.restrict_to(cohort) for fold in read_splits(splits, full_cohort)]
    return DatasetFolds(dataset, folds_of_file)


def _check_fold_options(given: dict[str, Any], splits: Path | None, *, every_slide: bool) -> None:
    """Reject options of new folds where no folds are made, rather than ignore them."""
    named = [name for name, value in given.items() if value is not None]
    if every_slide and splits is not None:
        raise click.UsageError("--splits and --all exclude each other; leave one out")
    if named and (splits is not None or every_slide):
        option, other = named[0].replace("_", "-"), "--all" if every_slide else "--splits"
        raise click.UsageError(
            f"--{option} is for new folds, which {other} does not make; leave it out"
        )


def _make_folds(
    cohort: Cohort,
    folds: int | None,
    split_seed: int | None,
    repeats: int | None,
    *,
    by_site: bool,
    every_slide: bool,
) -> list[Fold]:
    from sacmil.cohorts.splits import make_folds, make_training_only_fold

    if every_slide:
        return [make_training_only_fold(cohort)]
    return make_folds(
        cohort, folds or 5, seed=split_seed or 0, repeats=repeats or 1, preserve_sites=by_site
    )


def read_config_values(config: Path | None, recipe: str | None) -> dict[str, Any]:
    """Return the values of the configuration file and --recipe, for make_configs."""
    from sacmil.training.config import read_config

    values = read_config(config) if config else {}
    return values | ({"recipe": recipe} if recipe else {})
