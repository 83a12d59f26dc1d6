"""Divide a cohort into folds, or check existing ones, and write them: ``sacmil split``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sacmil.arguments import is_integer, to_output_folder
from sacmil.cohorts.cohort import Cohort, get_cohort, write_cohort
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.split_files import read_splits, write_splits
from sacmil.cohorts.splits import VALIDATION_SHARE, Fold, list_given_folds, make_folds

TABLE_FILE = "table.csv"
OFFICIAL_FOLDER = "official"

FoldChoice = int | Sequence[Fold] | str | Path
"""A number of folds to make, folds, or a file or folder of splits."""


class SetCounts(NamedTuple):
    """Patients and slides of one set of a fold."""

    fold: int
    name: str
    """train, val or test."""
    patients: int
    slides: int
    patients_by_class: tuple[int, ...]
    slides_by_class: tuple[int, ...]


@dataclass(frozen=True)
class CohortSplit:
    """A cohort and its folds."""

    cohort: Cohort
    folds: Sequence[Fold]
    files: Sequence[Path]
    """Files of the folds; empty if nothing was written."""

    def count_sets(self) -> list[SetCounts]:
        """Count patients and slides in every set of every fold."""
        return [
            self._count_set(number, name, slide_ids)
            for number, fold in enumerate(self.folds)
            for name, slide_ids in zip(fold._fields, fold, strict=True)
        ]

    def _count_set(self, number: int, name: str, slide_ids: tuple[str, ...]) -> SetCounts:
        index = self.cohort.index
        rows = index.find_rows(slide_ids)
        patients = int(index.mark_patients(rows).sum())
        by_class = (tuple(index.count_patients(rows)), tuple(index.count_slides(rows)))
        return SetCounts(number, name, patients, len(slide_ids), *by_class)


def split_cohort(
    dataset: Dataset | Cohort,
    folds: FoldChoice = 5,
    *,
    out: str | Path | None = None,
    seed: int = 0,
    repeats: int = 1,
    validation: float = VALIDATION_SHARE,
    preserve_sites: bool = False,
    official: Fold | None = None,
    with_table: bool = False,
    overwrite: bool = False,
) -> CohortSplit:
    """Divide a cohort into stratified folds by patient, or check existing splits.

    Args:
        dataset: a dataset or a cohort.
        folds: number of folds to make; or folds; or a file or folder of splits to check.
        out: folder for the splits; None writes nothing.
        seed: of new folds, and of validation sets that existing splits lack.
        repeats: number of times to make new folds; fold numbers continue.
        validation: share of the patients not tested on in the validation set.
        preserve_sites: keep all patients of a site in one test set.
        official: a split to write into the subfolder ``official``.
        with_table: also write the cohort, as table.csv.
        overwrite: replace other splits in ``out``.

    Returns:
        The folds, their files, and counts of patients and slides.

    Example:
        >>> from sacmil.synthetic.bags import make_synthetic_cohort
        >>> cohort = make_synthetic_cohort("cluster", 20, seed=0).table
        >>> split = split_cohort(cohort, 5)
        >>> split.count_sets()[2]
        SetCounts(fold=0, name='test', patients=4, slides=4, patients_by_class=(2, 2), \
slides_by_class=(2, 2))
    """
    cohort = get_cohort(dataset)
    folder = None if out is None else to_output_folder(out)
    chosen = resolve_folds(
        cohort,
        folds,
        seed=seed,
        repeats=repeats,
        validation=validation,
        preserve_sites=preserve_sites,
    )
    if folder is None:
        return CohortSplit(cohort, chosen, ())
    files = write_splits(folder, chosen, cohort, overwrite=overwrite)
    if official is not None:
        write_splits(folder / OFFICIAL_FOLDER, [official], cohort, overwrite=overwrite)
    if with_table:
        write_cohort(folder / TABLE_FILE, cohort)
    return CohortSplit(cohort, chosen, files)


def resolve_folds(
    cohort: Cohort,
    folds: FoldChoice,
    *,
    seed: int = 0,
    repeats: int = 1,
    validation: float = VALIDATION_SHARE,
    preserve_sites: bool = False,
) -> list[Fold]:
    """Make folds, read them from a file or folder, or check given ones; as split_cohort does."""
    if isinstance(folds, str | Path):
        return read_splits(folds, cohort, seed=seed, validation=validation)
    if not is_integer(folds):
        return list_given_folds(cohort, folds)
    return make_folds(
        cohort,
        folds,
        seed=seed,
        repeats=repeats,
        validation=validation,
        preserve_sites=preserve_sites,
    )
