"""What train and crossval say in the same way: the cohort's bags, its folds, the configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from sacmil.cli._cohort import cohort_options, read_cohort

if TYPE_CHECKING:
    from sacmil.cohorts.splits import Fold
    from sacmil.cohorts.table import Cohort

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
    click.option(
        "--folds", default=5, show_default=True, type=click.IntRange(2), help="How many to make."
    ),
    click.option(
        "--split-seed", default=0, show_default=True, type=click.IntRange(0), help="Of new folds."
    ),
    click.option("--recipe", help="paper, official, or another the model has.  [default: paper]"),
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
        help="Where bags stay between epochs.",
    ),
)


def training_options(function: Function) -> Function:
    """Options of a command that trains."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return cohort_options(function)


class Material(NamedTuple):
    """What to learn from."""

    cohort: Cohort
    bags: dict[str, Path]
    folds: list[Fold]


def read_material(
    table: Path,
    folders: tuple[Path, ...],
    splits: Path | None,
    folds: int,
    split_seed: int,
    *,
    drop_missing: bool,
    repeats: int = 1,
    every_slide: bool = False,
    **columns: Any,
) -> Material:
    """Cohort, bags and folds, everything checked before anything is trained."""
    from sacmil.cohorts.bags import check_bags, locate_bags, missing_bags
    from sacmil.cohorts.bags import drop_missing as without_missing
    from sacmil.cohorts.split_files import read_splits
    from sacmil.cohorts.splits import all_slides, make_folds

    further = None if drop_missing else partial(missing_bags, folders=folders)
    cohort = read_cohort(table, further=further, **columns)
    if drop_missing:
        cohort = without_missing(cohort, folders)
    bags = locate_bags(cohort, folders)
    check_bags(bags)
    if every_slide:
        return Material(cohort, bags, [all_slides(cohort)])
    if splits is not None:
        return Material(cohort, bags, read_splits(splits, cohort, seed=split_seed))
    preserve = bool(columns.get("preserve"))
    made = make_folds(cohort, folds, seed=split_seed, repeats=repeats, preserve_sites=preserve)
    return Material(cohort, bags, made)


def config_values(config: Path | None, recipe: str | None) -> dict[str, Any]:
    """What the file and --recipe say, for make_config."""
    from sacmil.training.config import read_config

    values = read_config(config) if config else {}
    return values | ({"recipe": recipe} if recipe else {})
