"""What train and crossval say in the same way: the cohort's bags, its folds, the configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from sacmil.cli._cohort import cohort_options, read_cohort_table

if TYPE_CHECKING:
    from sacmil.cohorts.cohort import Cohort
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
        help="Folder of the bags, in any layout; may be given again.",
    ),
    click.option("--drop-missing", is_flag=True, help="Leave out slides without a bag."),
    click.option("--out", required=True, type=click.Path(path_type=Path), help="The run folder."),
    click.option("--splits", type=_EXISTING, help="Folds made before; by default made here."),
    click.option("--folds", type=click.IntRange(2), help="How many to make.  [default: 5]"),
    click.option("--split-seed", type=click.IntRange(0), help="Of new folds.  [default: 0]"),
    click.option(
        "--recipe",
        help="standard, paper, official, or another the model has.  [default: standard]",
    ),
    click.option("--config", type=_EXISTING, help="YAML: model, options, recipe, training, …"),
    click.option(
        "-o",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting of training or an option of the model, such as lr=2e-4.",
    ),
    click.option(
        "--cache",
        default="auto",
        show_default=True,
        type=click.Choice(["auto", "none", "memory", "gpu"]),
        help="Where bags stay between epochs; gpu: on the device that trains.",
    ),
)


def training_options(function: Function) -> Function:
    """Options of a command that trains."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return cohort_options(function)


class Dataset(NamedTuple):
    """What to learn from."""

    cohort: Cohort
    bags: dict[str, Path]
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
) -> Dataset:
    """Cohort, bags and folds, everything checked before anything is trained."""
    from sacmil.cohorts.bags import drop_slides_without_bag as without_missing
    from sacmil.cohorts.bags import find_bag_problems, locate_bags

    new = {"folds": folds, "split_seed": split_seed, "repeats": repeats}
    _check_fold_options(
        {**new, "preserve": columns.get("preserve")}, splits, every_slide=every_slide
    )
    further = partial(find_bag_problems, folders=folders, allow_missing=drop_missing)
    whole = read_cohort_table(table, extra_check=further, **columns)
    cohort = without_missing(whole, folders) if drop_missing else whole
    bags = locate_bags(cohort, folders)
    if splits is None:
        by_site = bool(columns.get("preserve"))
        made = _make_folds(cohort, by_site=by_site, every_slide=every_slide, **new)
        return Dataset(cohort, bags, made)
    from sacmil.cohorts.split_files import read_splits

    return Dataset(cohort, bags, [fold.restrict_to(cohort) for fold in read_splits(splits, whole)])


def _check_fold_options(given: dict[str, Any], splits: Path | None, *, every_slide: bool) -> None:
    """What is said of new folds must not be ignored where there are none to make."""
    named = [name for name, value in given.items() if value is not None]
    if every_slide and splits is not None:
        raise click.UsageError("--splits says how to divide slides, and --all takes all of them")
    if named and (splits is not None or every_slide):
        option, other = named[0].replace("_", "-"), "--all" if every_slide else "--splits"
        raise click.UsageError(f"--{option} is for new folds, and {other} makes none; leave it out")


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
    """What the file and --recipe say, for make_config."""
    from sacmil.training.config import read_config

    values = read_config(config) if config else {}
    return values | ({"recipe": recipe} if recipe else {})
