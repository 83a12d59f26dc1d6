"""Divide a cohort into folds, or read existing ones, and write them: ``sacmil split``.

Files of folds:

===========================  ==================================================================
``splits_<i>.csv`` (CLAM)    columns train, val, test of slide ids, padded; a file per fold
``splits.json`` (STAMP)      train_patients and test_patients of each fold
``fold<i>.csv`` (TransMIL)   as CLAM, with columns train_label, val_label, test_label between
``k=all.tsv`` (Patho-Bench)  a row per slide or case; fold_0, fold_1, … hold train, val or test
``splits.csv`` (torchmil)    a row per slide: bag_name, split
===========================  ==================================================================

The first two are written. If a layout has no validation set, one is taken from the training
patients.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sacmil.arguments import is_integer, to_output_folder
from sacmil.atomic import write_file
from sacmil.cohorts import splits
from sacmil.cohorts.cohort import Cohort, get_cohort, write_cohort
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.rows import PATIENT_COLUMNS, SLIDE_COLUMNS, parse_slide_id
from sacmil.cohorts.sheet import Sheet, read_sheet
from sacmil.cohorts.splits import VALIDATION_SHARE, Fold
from sacmil.csv_text import escape_cells
from sacmil.errors import CohortError

TABLE_FILE = "table.csv"
OFFICIAL_FOLDER = "official"
STAMP_FILE = "splits.json"
_NUMBERED_PATTERNS = (re.compile(r"splits_(\d+)\.csv"), re.compile(r"fold_?(\d+)\.csv"))
_FOLD_COLUMN_PATTERN = re.compile(r"fold_\d+")
_SET_NAMES = (("train", "training"), ("val", "valid", "validation", "dev"), ("test",))
_SET_OF_NAME = {name: number for number, names in enumerate(_SET_NAMES) for name in names}

FoldChoice = int | Sequence[Fold] | str | Path
"""A number of folds to make, folds, or a file or folder of splits."""
_ParsedFold = tuple[Fold, bool]
"""A fold, and whether its layout has a validation set."""


class SetCounts(NamedTuple):
    """Patients and slides of one set of a fold."""

    fold: int
    name: str
    """train, val or test."""
    patients: int
    slides: int
    patients_by_class: tuple[int, ...]
    """Or by what the task counts, such as events."""
    slides_by_class: tuple[int, ...]


@dataclass(frozen=True)
class CohortSplit:
    """A cohort and its folds."""

    cohort: Cohort
    folds: list[Fold]
    files: Sequence[Path]
    """Files of the folds; empty if nothing was written."""

    @property
    def counted_names(self) -> tuple[str, ...]:
        """Classes or levels; of other targets what the task counts, such as events."""
        return self.cohort.classes or tuple(self.cohort.task.mark_rows(self.cohort.targets))

    def count_sets(self) -> list[SetCounts]:
        """Count patients and slides in every set of every fold."""
        return [
            self._count_set(number, name, slide_ids)
            for number, fold in enumerate(self.folds)
            for name, slide_ids in zip(fold._fields, fold, strict=True)
        ]

    def find_training_problems(self) -> list[str]:
        """Return the training sets that the task cannot learn from, such as too few events.

        A recipe that keeps the last epoch trains on the validation set too.
        """
        problems = []
        for number, fold in enumerate(self.folds):
            found = self._find_fitting_problems(fold.train + fold.val)
            problems += [f"fold {number}: {text}" for text in found]
            if not found:
                found = self._find_fitting_problems(fold.train)
                problems += [f"fold {number}: without validation, {text}" for text in found]
        return problems

    def _find_fitting_problems(self, slide_ids: Sequence[str]) -> list[str]:
        targets = self.cohort.restrict_to(slide_ids).learned_targets
        return self.cohort.task.find_fitting_problems(targets)

    def _count_set(self, number: int, name: str, slide_ids: Sequence[str]) -> SetCounts:
        part = self.cohort.restrict_to(slide_ids)
        if not part.classes:
            marks = part.task.mark_rows(part.targets).values()
            ids = np.array([slide.patient_id for slide in part.slides], dtype=np.str_)
            patients = tuple(len(np.unique(ids[mark])) for mark in marks)
            slides = tuple(int(mark.sum()) for mark in marks)
            return SetCounts(number, name, len(part.patients), len(part), patients, slides)
        labels = Counter(part.labels)
        by_class = tuple(labels[label] for label in range(len(part.classes)))
        counts = len(part.patients), len(part), part.patients_per_class
        return SetCounts(number, name, *counts, by_class)


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
    if isinstance(folds, str | Path):
        chosen = read_splits(folds, cohort, seed=seed, validation=validation)
    elif is_integer(folds):
        chosen = splits.make_folds(
            cohort,
            folds,
            seed=seed,
            repeats=repeats,
            validation=validation,
            preserve_sites=preserve_sites,
        )
    else:
        chosen = splits.list_given_folds(cohort, folds)
    files = write_splits(folder, chosen, cohort, overwrite=overwrite) if folder else ()
    if folder and official is not None:
        write_splits(folder / OFFICIAL_FOLDER, [official], cohort, overwrite=overwrite)
    if folder and with_table:
        write_cohort(folder / TABLE_FILE, cohort)
    return CohortSplit(cohort, chosen, files)


def write_splits(
    folder: str | Path,
    folds: Sequence[Fold],
    cohort: Cohort | None = None,
    *,
    overwrite: bool = False,
) -> list[Path]:
    """Write splits_<i>.csv; with a cohort, also splits.json.

    Args:
        folder: created if missing.
        folds: numbered from 0.
        cohort: needed for STAMP's file, which lists patients. It is not written if a patient is
            on both sides of a fold, which the file cannot express.
        overwrite: replace other splits in the folder; equal ones are kept.
    """
    folder = Path(folder)
    numbered = {f"splits_{number}.csv": fold for number, fold in enumerate(folds)}
    texts = {name: _format_clam(fold) for name, fold in numbered.items()}
    if cohort is not None and (stamp := _format_stamp(folds, cohort)):
        texts[STAMP_FILE] = stamp
    present = [
        file
        for file in sorted(folder.glob("splits*"))
        if _NUMBERED_PATTERNS[0].fullmatch(file.name)
        or (cohort is not None and file.name == STAMP_FILE)
    ]
    differing = [file for file in present if not _has_content(file, texts, numbered)]
    if differing and not overwrite:
        found = ", ".join(file.name for file in differing[:3])
        fix = "choose another `out`, or replace them with `overwrite`"
        raise CohortError(folder, [f"already holds other splits ({found}); {fix}"])
    for file in differing:  # first, so that an interruption cannot leave a mix of two divisions
        file.unlink()
    for name, text in texts.items():
        write_file(folder / name, text)
    return [folder / name for name in texts]


def _has_content(file: Path, texts: Mapping[str, str], folds: Mapping[str, Fold]) -> bool:
    """Whether a file holds its text, or its fold as earlier versions wrote it, not escaped."""
    found, name = file.read_bytes(), file.name
    if name in texts and found == texts[name].encode():
        return True
    return name in folds and found == _format_clam(folds[name], escaped=False).encode()


def _format_clam(fold: Fold, *, escaped: bool = True) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["", *Fold._fields])
    rows = zip_longest(*(map(escape_cells, fold) if escaped else fold), fillvalue="")
    writer.writerows([number, *cells] for number, cells in enumerate(rows))
    return stream.getvalue()


def _format_stamp(folds: Sequence[Fold], cohort: Cohort) -> str:
    """Format folds; empty if a patient is on both sides of one."""
    listed = []
    for fold in folds:
        train, val, test = ({slide.patient_id for slide in cohort.get_slides(ids)} for ids in fold)
        if (train | val) & test:
            return ""
        listed.append({"train_patients": sorted(train | val), "test_patients": sorted(test)})
    return json.dumps({"splits": listed}, ensure_ascii=False, indent=1) + "\n"


def read_splits(
    path: str | Path, cohort: Cohort, *, seed: int = 0, validation: float = VALIDATION_SHARE
) -> list[Fold]:
    """Read folds of any layout above, and check them against the cohort.

    Args:
        path: a folder of splits, or a file.
        cohort: its slides are matched by id, without folders and suffixes.
        seed: of the validation set, if the layout has none.
        validation: share of that validation set.
    """
    path = Path(path)
    found: list[_ParsedFold] = []
    for file in _find_split_files(path):
        is_stamp = file.suffix == ".json"
        found += _read_stamp_folds(file, cohort) if is_stamp else _read_table_folds(file, cohort)
    try:
        splits.check_folds(cohort, [fold for fold, _ in found])
    except CohortError as error:
        raise CohortError(path, error.problems) from None
    complete = partial(splits.add_validation_set, cohort, seed=seed, validation=validation)
    return [fold if has_validation else complete(fold) for fold, has_validation in found]


def _find_split_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise CohortError(path, ["there is no such file or folder; expected splits"])
    names = {file.name: file for file in path.iterdir() if file.is_file()}
    for pattern in _NUMBERED_PATTERNS:
        numbered = [(int(found[1]), names[n]) for n in names if (found := pattern.fullmatch(n))]
        if numbered:
            return [file for _, file in sorted(numbered)]
    for name in (STAMP_FILE, "k=all.tsv", "splits.csv"):
        if name in names:
            return [names[name]]
    expected = f"expected splits_0.csv, …, {STAMP_FILE}, k=all.tsv or splits.csv"
    raise CohortError(path, [f"holds no splits; {expected}"])


def _read_table_folds(file: Path, cohort: Cohort) -> list[_ParsedFold]:
    """Read the folds of a CSV or TSV file; its columns determine the layout."""
    sheet = read_sheet(file)
    if sheet.find_column("train") and sheet.find_column("test"):
        return [_parse_column_fold(sheet, cohort)]
    columns = [column for column in sheet.columns if _FOLD_COLUMN_PATTERN.fullmatch(column)]
    columns.sort(key=lambda column: int(column.split("_")[1]))
    split = sheet.find_column("split")
    if not columns and split is None:
        expected = "expected train, val, test, or split, or fold_0, fold_1…"
        raise CohortError(file, [f"has columns {sheet.list_columns()}; {expected}"])
    slides = _find_slides_of_rows(sheet, cohort)
    return [_parse_row_fold(sheet, column, slides) for column in columns or [split or ""]]


def _parse_column_fold(sheet: Sheet, cohort: Cohort) -> _ParsedFold:
    """Parse a column of slide ids per set, as in CLAM and TransMIL."""
    match = _make_id_matcher(cohort)
    columns = [sheet.find_column(name) for name in Fold._fields]
    cells = [sheet.get_column(column) if column else [] for column in columns]
    sets = (tuple(match(cell) for cell in ids if cell) for ids in cells)
    return Fold(*sets), columns[1] is not None


def _parse_row_fold(sheet: Sheet, column: str, slides: list[list[str]]) -> _ParsedFold:
    """Parse a row per slide, or per case, whose cell names the set."""
    sets: tuple[list[str], list[str], list[str]] = ([], [], [])
    for line, ids, cell in zip(sheet.rows, slides, sheet.get_column(column), strict=True):
        if cell and cell.lower() not in _SET_OF_NAME:
            problem = f"line {line}: {column} is {cell!r}; expected train, val or test"
            raise CohortError(sheet.path, [problem])
        if cell:
            sets[_SET_OF_NAME[cell.lower()]].extend(ids)
    return Fold(*map(tuple, sets)), bool(sets[1])


def _find_slides_of_rows(sheet: Sheet, cohort: Cohort) -> list[list[str]]:
    slide, patient = sheet.find_column(*SLIDE_COLUMNS), sheet.find_column(*PATIENT_COLUMNS)
    if slide is not None:
        match = _make_id_matcher(cohort)
        return [[match(cell)] for cell in sheet.get_column(slide)]
    if patient is None:
        raise CohortError(sheet.path, ["has no column of slides; expected slide_id or case_id"])
    return [_find_slides_of_patient(cell, cohort) for cell in sheet.get_column(patient)]


def _find_slides_of_patient(patient: str, cohort: Cohort) -> list[str]:
    """Return the slides of a patient; an unknown patient is returned itself, and reported later."""
    return [slide.slide_id for slide in cohort.patients.get(patient, ())] or [patient]


def _read_stamp_folds(file: Path, cohort: Cohort) -> list[_ParsedFold]:
    try:
        found = json.loads(file.read_text(encoding="utf-8-sig"))
        return [(_parse_stamp_fold(split, cohort), False) for split in found["splits"]]
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        found = f"cannot be read as STAMP's splits ({type(error).__name__}: {error})"
        expected = '{"splits": [{"train_patients": […], "test_patients": […]}]}'
        raise CohortError(file, [f"{found}; expected {expected}"]) from error


def _parse_stamp_fold(split: Mapping[str, Any], cohort: Cohort) -> Fold:
    sets: list[tuple[str, ...]] = []
    for patients in (split["train_patients"], (), split["test_patients"]):
        if isinstance(patients, str):
            raise TypeError("found a text instead of a list of patients")
        found = (_find_slides_of_patient(str(patient), cohort) for patient in patients)
        sets.append(tuple(chain.from_iterable(found)))
    return Fold(*sets)


def _make_id_matcher(cohort: Cohort) -> Callable[[str], str]:
    """Return a function from an id in a file to the cohort's: pandas turns 007 into 7 or 7.0."""
    numbers: dict[str, list[str]] = {}
    for slide_id in cohort.by_id:
        if slide_id.isdecimal():
            numbers.setdefault(slide_id.lstrip("0"), []).append(slide_id)

    def match(text: str) -> str:
        name = parse_slide_id(text)
        number = name.removesuffix(".0")
        if name in cohort.by_id or not number.isdecimal():
            return name
        alike = numbers.get(number.lstrip("0"), [])
        return alike[0] if len(alike) == 1 else name

    return match
