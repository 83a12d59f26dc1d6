"""Files of folds: CLAM's splits_<i>.csv, STAMP's splits.json, and others that are only read.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from sacmil.atomic import atomic_write
from sacmil.cohorts.cohort import Cohort
from sacmil.cohorts.rows import PATIENT_COLUMNS, SLIDE_COLUMNS
from sacmil.cohorts.sheet import Sheet, read_sheet
from sacmil.cohorts.slide_id import parse_slide_id
from sacmil.cohorts.slide_index import pause_garbage_collection
from sacmil.cohorts.splits import VALIDATION_SHARE, Fold, add_validation_set, check_folds
from sacmil.csv_text import escape_column, restore_cells
from sacmil.errors import CohortError

STAMP_FILE = "splits.json"
_NUMBERED_PATTERNS = (re.compile(r"splits_(\d+)\.csv"), re.compile(r"fold_?(\d+)\.csv"))
_FOLD_COLUMN_PATTERN = re.compile(r"fold_\d+")
_SET_OF_NAME = {
    "train": 0,
    "training": 0,
    "val": 1,
    "valid": 1,
    "validation": 1,
    "dev": 1,
    "test": 2,
}


@pause_garbage_collection()
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
    texts = {f"splits_{number}.csv": _format_clam(fold) for number, fold in enumerate(folds)}
    if cohort is not None and (stamp := _format_stamp(folds, cohort)):
        texts[STAMP_FILE] = stamp
    present = [
        file
        for file in _find_written_splits(folder)
        if cohort is not None or file.name != STAMP_FILE
    ]
    differing = [file for file in present if _has_other_content(file, texts)]
    if differing and not overwrite:
        raise CohortError(
            folder,
            [
                f"already holds other splits ({', '.join(f.name for f in differing[:3])}); "
                "choose another `out`, or replace them by `overwrite`"
            ],
        )
    for file in differing:  # first, so that an interruption cannot leave a mix of two divisions
        file.unlink()
    for name, text in texts.items():
        _write_text(folder / name, text)
    return [folder / name for name in texts]


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
        found += (
            _read_stamp_folds(file, cohort)
            if file.suffix == ".json"
            else _read_table_folds(file, cohort)
        )
    try:
        check_folds(cohort, [fold for fold, _ in found])
    except CohortError as error:
        raise CohortError(path, error.problems) from None
    return [
        fold
        if has_validation
        else add_validation_set(cohort, fold, seed=seed, validation=validation)
        for fold, has_validation in found
    ]


class _ParsedFold(NamedTuple):
    fold: Fold
    has_validation: bool
    """Whether its layout has a validation set."""


def _format_clam(fold: Fold) -> str:
    header, count = ["", *Fold._fields], max(map(len, fold))
    columns = [list(map(str, range(count))), *map(escape_column, fold)]
    lines = map(",".join, zip_longest(*columns, fillvalue=""))
    text = "\n".join([",".join(header), *lines, ""])
    if not _needs_quotes(text, count + 1):  # csv would write the same, but slower
        return text
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(zip_longest(*columns, fillvalue=""))
    return stream.getvalue()


def _needs_quotes(text: str, rows: int) -> bool:
    """Whether a cell of a table of four columns holds a character that needs quotes."""
    has_marks = '"' in text or "\r" in text
    return has_marks or text.count(",") != 3 * rows or text.count("\n") != rows


def _format_stamp(folds: Sequence[Fold], cohort: Cohort) -> str:
    index, splits = cohort.index, []
    for fold in folds:
        train, val, test = (index.mark_patients(index.find_rows(ids)) for ids in fold)
        train |= val
        if (train & test).any():
            return ""
        texts = [_format_json_list(index.name_patients(mask)) for mask in (train, test)]
        splits.append('  {{\n   "train_patients": {},\n   "test_patients": {}\n  }}'.format(*texts))
    return '{\n "splits": [\n' + ",\n".join(splits) + "\n ]\n}\n"


def _format_json_list(texts: list[str]) -> str:
    """Format like json.dumps with indent=1, but faster: with an indent, json uses no C code."""
    if not texts:
        return "[]"
    lines = json.dumps(texts, ensure_ascii=False, separators=(",\n    ", ": "))
    return f"[\n    {lines[1:-1]}\n   ]"


def _find_written_splits(folder: Path) -> list[Path]:
    """Find the splits in a folder that this module may have written."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [f for f in files if f.name == STAMP_FILE or _NUMBERED_PATTERNS[0].fullmatch(f.name)]


def _has_other_content(file: Path, texts: Mapping[str, str]) -> bool:
    if file.name not in texts:
        return True
    found, text = file.read_bytes(), texts[file.name]
    if found == text.encode():
        return False
    return file.name == STAMP_FILE or found != _unescape_cells(text).encode()


def _unescape_cells(text: str) -> str:
    """Return the file as earlier versions wrote it, without escaped formulas."""
    stream = io.StringIO(newline="")
    rows = csv.reader(io.StringIO(text, newline=""))
    csv.writer(stream, lineterminator="\n").writerows(map(restore_cells, rows))
    return stream.getvalue()


def _write_text(path: Path, text: str) -> None:
    with atomic_write(path) as partial:
        partial.write_bytes(text.encode())


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
    raise CohortError(
        path, [f"holds no splits; expected splits_0.csv, …, {STAMP_FILE}, k=all.tsv or splits.csv"]
    )


def _read_table_folds(file: Path, cohort: Cohort) -> list[_ParsedFold]:
    """Read the folds of a CSV or TSV file; its columns determine the layout."""
    sheet = read_sheet(file)
    if sheet.find_column("train") and sheet.find_column("test"):
        return [_parse_column_fold(sheet, cohort)]
    folds = [column for column in sheet.columns if _FOLD_COLUMN_PATTERN.fullmatch(column)]
    if folds:
        folds.sort(key=lambda column: int(column.split("_")[1]))
    elif (split := sheet.find_column("split")) is not None:
        folds = [split]
    else:
        listed = ", ".join(column for column in sheet.columns if column)
        raise CohortError(
            file, [f"has columns {listed}; expected train, val, test, or split, or fold_0, fold_1…"]
        )
    return [_parse_row_fold(sheet, column, cohort) for column in folds]


def _parse_column_fold(sheet: Sheet, cohort: Cohort) -> _ParsedFold:
    """Parse a column of slide ids per set, as in CLAM and TransMIL."""
    match = _make_id_matcher(cohort)
    sets = []
    for name in Fold._fields:
        column = sheet.find_column(name)
        cells = sheet.get_column(column) if column else []
        sets.append(tuple(match(cell) for cell in cells if cell))
    return _ParsedFold(Fold(*sets), has_validation=sheet.find_column("val") is not None)


def _parse_row_fold(sheet: Sheet, column: str, cohort: Cohort) -> _ParsedFold:
    """Parse a row per slide, or per case, whose cell names the set."""
    sets: tuple[list[str], list[str], list[str]] = ([], [], [])
    slides = _find_slides_of_rows(sheet, cohort)
    for line, ids, cell in zip(sheet.line_numbers, slides, sheet.get_column(column), strict=True):
        if cell and cell.lower() not in _SET_OF_NAME:
            problem = f"line {line}: {column} is {cell!r}; expected train, val or test"
            raise CohortError(sheet.path, [problem])
        if cell:
            sets[_SET_OF_NAME[cell.lower()]].extend(ids)
    train, val, test = map(tuple, sets)
    return _ParsedFold(Fold(train, val, test), has_validation=bool(val))


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
        return [_parse_stamp_fold(split, cohort) for split in found["splits"]]
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise CohortError(
            file,
            [
                f"cannot be read as STAMP's splits ({type(error).__name__}: {error}); expected "
                '{"splits": [{"train_patients": […], "test_patients": […]}]}'
            ],
        ) from error


def _parse_stamp_fold(split: Mapping[str, Any], cohort: Cohort) -> _ParsedFold:
    train, test = (
        _find_slides_of_patients(split[f"{name}_patients"], cohort) for name in ("train", "test")
    )
    return _ParsedFold(Fold(train, (), test), has_validation=False)


def _find_slides_of_patients(patients: Iterable[Any], cohort: Cohort) -> tuple[str, ...]:
    if isinstance(patients, str):
        raise TypeError("found a text instead of a list of patients")
    return tuple(s for patient in patients for s in _find_slides_of_patient(str(patient), cohort))


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
