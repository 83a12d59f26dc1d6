"""Which bags of a source train, choose the epoch, and are tested on; groups are never divided.

A split in JSON is empty for a synthetic cohort, whose pieces are its parts, and otherwise
``{"folds": 10, "repeat": 1, "fold": 0}``. Repeat 1 is for development, others confirm.
"""

from __future__ import annotations

import numpy as np

from benchmarks.accuracy._bags import Bags
from benchmarks.accuracy._job import Split
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.splits import VALIDATION_SHARE, Fold, make_folds

Parts = dict[str, list[int]]
"""Numbers of bags: train, val, test, and whatever else a model is tried on afterwards."""


def parts_of(bags: Bags, split: Split) -> Parts:
    """The parts of a split."""
    if not split:
        return {str(piece): _where(bags.groups == piece) for piece in dict.fromkeys(bags.groups)}
    fold = _fold(bags, split)
    if "whole" not in bags.kinds:
        return {name: _where(np.isin(bags.units, getattr(fold, name))) for name in fold._fields}
    # Of IDC whole slides are dealt; windows follow their slide.
    sides = {"train": "train", "val": "test", "test": "test"}
    parts = {
        name: _where(np.isin(bags.groups, getattr(fold, name)) & (bags.kinds == kind))
        for name, kind in sides.items()
    }
    return parts | {"whole": _where(np.isin(bags.groups, fold.test) & (bags.kinds == "whole"))}


def _fold(bags: Bags, split: Split) -> Fold:
    """Dealt by name, so that the same split comes out on every machine."""
    whole = _where(np.isin(bags.kinds, ("bag", "whole")))
    slides = [
        LabeledSlide(str(bags.units[i]), str(bags.groups[i]), _stratum(bags, i)) for i in whole
    ]
    cohort = Cohort(tuple(slides), ("negative", "positive"))
    validation = float(split.get("validation", VALIDATION_SHARE))
    folds = make_folds(
        cohort, int(split["folds"]), seed=int(split["repeat"]), validation=validation
    )
    return folds[int(split["fold"])]


def _stratum(bags: Bags, bag: int) -> int:
    """The label; of whole slides, nearly all of which are positive, whether above the median."""
    if bags.kinds[bag] == "bag":
        return int(bags.labels[bag])
    return int(_positives(bags, bag) > _median(bags))


def _median(bags: Bags) -> float:
    return float(np.median([_positives(bags, i) for i in _where(bags.kinds == "whole")]))


def _positives(bags: Bags, bag: int) -> float:
    return float((bags.truth[bags.slice(bag)] > 0).mean())


def _where(mask: np.ndarray) -> list[int]:
    return [int(index) for index in np.flatnonzero(mask)]
