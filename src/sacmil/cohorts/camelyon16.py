"""CAMELYON16: metastases in lymph nodes; the official test set is kept separate.

The challenge has training slides, normal_<n> and tumor_<n>, and test slides, test_<n>. There are
two protocols:

- ``folds``: cross-validation among the training slides only. The test set of a fold is a fifth of
  them; no official test slide is in any fold.
- ``official``: one fold: train and val are all training slides, test is the official test set.

CAMELYON16 does not state which slides are of one patient; each slide counts as a patient.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import NamedTuple

from sacmil.cohorts import splits
from sacmil.cohorts.cohort import Cohort, build_cohort, read_cohort
from sacmil.cohorts.rows import SLIDE_COLUMNS, SlideRow, parse_slide_id
from sacmil.cohorts.sheet import read_sheet
from sacmil.errors import CohortError, CohortWarning

CLASSES = ("Normal", "Tumor")
REFERENCE_FILE = "reference.csv"
"""The official labels of the test slides: test_001,Tumor,… without a header."""

_SLIDE_NAME_PATTERN = re.compile(r"(normal|tumor|test)_\d{3}")


class Camelyon16(NamedTuple):
    """The cohort and its divisions."""

    cohort: Cohort
    """All slides that are labelled."""
    training: Cohort
    """The official training slides, which the folds divide."""
    folds: list[splits.Fold]
    official: splits.Fold | None
    """Trained on the training slides, tested on the test slides; None if there are none."""


def read_camelyon16(
    source: str | Path,
    *,
    folds: int = 5,
    seed: int = 0,
    repeats: int = 1,
    validation: float = splits.VALIDATION_SHARE,
) -> Camelyon16:
    """Build the cohort, folds of its training slides, and the official split.

    Args:
        source: a table of slides and labels, or a folder of the slides or their bags. In a folder,
            names give the labels of training slides, and reference.csv those of test slides.
        folds: number of folds of the training slides.
        seed: another seed gives other folds.
        repeats: number of repeats of the division into folds.
        validation: share of the training slides in the validation set.
    """
    source = Path(source)
    cohort = _read_folder(source) if source.is_dir() else _read_labeled_table(source)
    names = [slide.slide_id for slide in cohort.slides]
    unknown = [name for name in names if not _SLIDE_NAME_PATTERN.fullmatch(name)]
    if unknown:
        expected = "expected normal_, tumor_ or test_<3 digits>"
        raise CohortError(source, [f"{name!r}; {expected}" for name in unknown])
    test = tuple(sorted(name for name in names if name.startswith("test_")))
    training = cohort.restrict_to(set(names) - set(test))
    made = splits.make_folds(training, folds, seed=seed, repeats=repeats, validation=validation)
    untested = splits.add_validation_set(
        training, splits.make_training_only_fold(training), seed=seed, validation=validation
    )
    official = untested._replace(test=test) if test else None
    return Camelyon16(cohort, training, made, official)


def _read_labeled_table(table: Path) -> Cohort:
    sheet = read_sheet(table)
    # the slides' column as patient column: each slide is a patient, without a warning
    return read_cohort(table, patient=sheet.find_column(*SLIDE_COLUMNS))


def _read_folder(folder: Path) -> Cohort:
    found = {parse_slide_id(file.name) for file in folder.rglob("*") if file.is_file()}
    slides = sorted(name for name in found if _SLIDE_NAME_PATTERN.fullmatch(name))
    if not slides:
        raise CohortError(folder, ["holds no file named normal_001, tumor_001 or test_001"])
    reference = _read_reference(folder)
    training = {name: name.split("_")[0].capitalize() for name in slides if "test" not in name}
    labels = reference | training
    rows = [SlideRow(name, name, name, labels[name]) for name in slides if name in labels]
    if unlabeled := len(slides) - len(rows):
        message = (
            f"{folder}: {unlabeled} test slides have no label and are left out; put the "
            f"challenge's {REFERENCE_FILE} into the folder, or give a table"
        )
        warnings.warn(message, CohortWarning, stacklevel=3)
    return build_cohort(folder, rows, classes=CLASSES)


def _read_reference(folder: Path) -> dict[str, str]:
    files = sorted(folder.rglob(REFERENCE_FILE))
    if not files:
        return {}
    sheet = read_sheet(files[0])
    lines = [sheet.columns, *sheet.rows.values()]  # the official file has no header
    return {
        parse_slide_id(line[0]): line[1].capitalize()
        for line in lines
        if _SLIDE_NAME_PATTERN.match(line[0])
    }
