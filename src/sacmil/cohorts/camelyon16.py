"""CAMELYON16: metastases in lymph nodes; the official test set stays apart.

The challenge has training slides, normal_<n> and tumor_<n>, and test slides, test_<n>. Two
different questions are asked of it:

``folds``     cross-validation among the training slides only. The test part of a fold is a fifth
              of them; no official test slide is in any part.
``official``  one fold: train and val are all training slides, test is the official test set.

CAMELYON16 does not say which slides are of one patient; each counts for its own.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from sacmil.cohorts.rows import SLIDE, Row
from sacmil.cohorts.sheet import read_sheet
from sacmil.cohorts.slide_name import slide_name
from sacmil.cohorts.splits import VALIDATION, Fold, all_slides, make_folds, with_validation
from sacmil.cohorts.table import Cohort, build_cohort, read_table
from sacmil.errors import CohortError, CohortWarning

CLASSES = ("Normal", "Tumor")
REFERENCE = "reference.csv"
"""The official labels of the test slides: test_001,Tumor,… without a header."""

_NAME = re.compile(r"(normal|tumor|test)_\d{3}")


class Camelyon16(NamedTuple):
    """The cohort and its divisions."""

    cohort: Cohort
    """All slides that are labelled."""
    training: Cohort
    """The official training slides, which the folds divide."""
    folds: list[Fold]
    official: Fold | None
    """Trained on the training slides, tested on the test slides; None where there are none."""


def camelyon16(
    source: str | Path,
    *,
    folds: int = 5,
    seed: int = 0,
    repeats: int = 1,
    validation: float = VALIDATION,
) -> Camelyon16:
    """Build the cohort, folds of its training slides, and the official division.

    Args:
        source: a table of slides and labels; or a folder of the slides or their bags, where names
            say what training slides are and reference.csv, anywhere in it, what test slides are.
        folds: of the training slides.
        seed: another seed, another division.
        repeats: how often to divide anew.
        validation: share of the training slides that chooses the epoch.
    """
    source = Path(source)
    cohort = _from_folder(source) if source.is_dir() else _from_table(source)
    names = [slide.slide_id for slide in cohort.slides]
    strangers = [name for name in names if not _NAME.fullmatch(name)]
    if strangers:
        raise CohortError(
            source, [f"{name!r}; expected normal_, tumor_ or test_<3 digits>" for name in strangers]
        )
    test = tuple(sorted(name for name in names if name.startswith("test_")))
    training = cohort.only(set(names) - set(test))
    divided = make_folds(training, folds, seed=seed, repeats=repeats, validation=validation)
    whole = with_validation(training, all_slides(training), seed=seed, validation=validation)
    official = whole._replace(test=test) if test else None
    return Camelyon16(cohort, training, divided, official)


def _from_table(table: Path) -> Cohort:
    sheet = read_sheet(table)
    # naming the slides' column says that slides are patients, and spares the warning
    return read_table(table, patient=sheet.find(*SLIDE))


def _from_folder(folder: Path) -> Cohort:
    found = {slide_name(file.name) for file in folder.rglob("*") if file.is_file()}
    slides = sorted(name for name in found if _NAME.fullmatch(name))
    if not slides:
        raise CohortError(folder, ["holds no file named normal_001, tumor_001 or test_001"])
    labels = _reference(folder)
    left = [name for name in slides if _label(name, labels) is None]
    if left:
        message = (
            f"{folder}: {len(left)} test slides have no label and are left out; put the "
            f"challenge's {REFERENCE} into the folder, or give a table"
        )
        warnings.warn(message, CohortWarning, stacklevel=3)
    return build_cohort(folder, _rows(slides, labels), classes=CLASSES)


def _rows(slides: Iterable[str], labels: Mapping[str, str]) -> list[Row]:
    found = ((name, _label(name, labels)) for name in slides)
    return [Row(name, name, name, label) for name, label in found if label is not None]


def _label(name: str, labels: Mapping[str, str]) -> str | None:
    kind = name.split("_")[0]
    return labels.get(name) if kind == "test" else kind.capitalize()


def _reference(folder: Path) -> dict[str, str]:
    files = sorted(folder.rglob(REFERENCE))
    if not files:
        return {}
    sheet = read_sheet(files[0])
    lines = [sheet.columns, *sheet.rows]  # the official file has no header
    return {slide_name(line[0]): line[1].capitalize() for line in lines if _NAME.match(line[0])}
