"""One model on one fold, or on every slide: a run folder that is a model folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sacmil.cohorts.splits import Fold
from sacmil.cohorts.table import Cohort
from sacmil.errors import CohortError
from sacmil.training.bag_files import check_and_hash
from sacmil.training.checkpoint import Epoch
from sacmil.training.config import Config
from sacmil.training.part import Part, Place, check_models, sources, train_part
from sacmil.training.run_folder import open_run


def train_run(
    out: Path,
    cohort: Cohort,
    bags: Mapping[str, Path],
    folds: Sequence[Fold],
    config: Config,
    *,
    fold: int = 0,
    place: Place | None = None,
    hashing: Callable[[str, int, int], None] = lambda task, done, total: None,
    tell: Callable[[Epoch, int], None] = lambda line, epochs: None,
) -> None:
    """Train on one of the folds; at once where that is done, from its last epoch where it began.

    Args:
        out: the run folder.
        cohort: the slides and their labels.
        bags: by slide id, where its bag is.
        folds: how the cohort is divided.
        config: what to train, and how.
        fold: which of them.
        place: on what to train.
        hashing: told of bags looked at.
        tell: told of every epoch, and how many there are.
    """
    if not 0 <= fold < len(folds):
        raise CohortError("--fold", [f"{fold}: there are folds 0 to {len(folds) - 1}"])
    check_models([config], bags, cohort.classes)
    with open_run(out, cohort, folds, "train", [config.seed]):
        hashes = check_and_hash(out, bags, hashing)
        train, val, test = (sources(cohort, ids, bags, hashes) for ids in folds[fold])
        part = Part(
            folder=out,
            name=config.model,
            config=config,
            classes=cohort.classes,
            fold=fold,
            train=train,
            val=val,
            test=test,
        )
        train_part(part, place, tell=lambda line: tell(line, part.epochs))


def for_every_slide(config: Config) -> Config:
    """The configuration for a fold without a validation part: nothing can choose, so the last."""
    if config.to_recipe().monitor == "last":
        return config
    return replace(config, training={**config.training, "monitor": "last", "patience": None})
