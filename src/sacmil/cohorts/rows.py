"""Parse one row per slide, from one table or STAMP's two, with any usual column names."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from sacmil.cohorts.sheet import Sheet
from sacmil.cohorts.slide_id import parse_barcode, parse_slide_id
from sacmil.errors import CohortError, CohortWarning

SLIDE_COLUMNS = ("slide_id", "slide", "filename", "wsi", "bag_name", "slide_path", "image")
PATIENT_COLUMNS = ("patient_id", "case_id", "patient", "pat_id")
LABEL_COLUMNS = ("label", "category", "target")
BARCODE_SITE = "barcode"
"""Instead of a site column: use the tissue source site in TCGA's barcodes."""

_MAX_COLUMNS_SHOWN = 20
"""Columns that a message lists."""
_NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


class SlideRow(NamedTuple):
    """The text cells of one slide."""

    location: str
    """Its line in the file, for messages."""
    slide_id: str
    patient_id: str
    label: str
    site: str = ""


class ColumnNames(NamedTuple):
    """Names of columns; None is found by the usual names."""

    slide: str | None
    patient: str | None
    label: str | None
    site: str | None


def parse_rows(table: Sheet, columns: ColumnNames) -> tuple[list[SlideRow], dict[str, str]]:
    """Return the rows of a table of slides, and the names of numeric labels."""
    slide = _find_slide_column(table, columns.slide)
    ids = [parse_slide_id(cell) for cell in table.get_column(slide)]
    label = _find_label_column(table, columns.label)
    patients = _find_patients(table, columns.patient, slide, ids)
    sites = _find_sites(table, columns.site, ids)
    where = [f"line {line}" for line in table.line_numbers]
    cells = zip(where, ids, patients, table.get_column(label), sites, strict=True)
    return list(map(SlideRow._make, cells)), _find_label_names(table, label)


def join_rows(
    clinical: Sheet, slides: Sheet, columns: ColumnNames
) -> tuple[list[SlideRow], dict[str, str]]:
    """Return a row per slide with the label of its patient, and the names of numeric labels."""
    known = clinical.get_column(_find_patient_column(clinical, columns.patient))
    _reject_repeated_patients(clinical, known)
    label = _find_label_column(clinical, columns.label)
    labels = dict(zip(known, clinical.get_column(label), strict=True))
    ids = [
        parse_slide_id(cell)
        for cell in slides.get_column(_find_slide_column(slides, columns.slide))
    ]
    owners = slides.get_column(_find_patient_column(slides, columns.patient))
    sites = _join_sites(clinical, known, owners, columns.site, ids)
    rows = [
        SlideRow(f"line {line} of {slides.path.name}", slide_id, owner, labels[owner], site)
        for line, slide_id, owner, site in zip(slides.line_numbers, ids, owners, sites, strict=True)
        if labels.get(owner)
    ]
    _warn_of_left_out(clinical, slides, labels, owners)
    return rows, _find_label_names(clinical, label)


def _join_sites(
    clinical: Sheet, patients: list[str], owners: list[str], site: str | None, ids: list[str]
) -> list[str]:
    if site is None or (site == BARCODE_SITE and clinical.find_column(site) is None):
        return _find_sites(clinical, site, ids)
    site_of = dict(
        zip(patients, clinical.get_column(clinical.require_column(site, "site")), strict=True)
    )
    return [site_of.get(owner, "") for owner in owners]


def _reject_repeated_patients(clinical: Sheet, patients: list[str]) -> None:
    repeated = [patient for patient, count in Counter(patients).items() if patient and count > 1]
    if repeated:
        raise CohortError(
            clinical.path,
            [f"patient {patient!r} occurs in several rows; keep one" for patient in repeated],
        )


def _warn_of_left_out(
    clinical: Sheet, slides: Sheet, labels: Mapping[str, str], owners: list[str]
) -> None:
    """Warn of slides and patients that only one of the two tables has."""
    unknown = [owner for owner in owners if owner not in labels]
    if owners and len(unknown) == len(owners):
        raise CohortError(
            slides.path,
            [
                f"none of its patients is in {clinical.path.name}: found {unknown[0]!r}, expected "
                f"ids such as {next(iter(labels), 'none')!r}; check for lost zeros and spellings"
            ],
        )
    unlabeled = sum(1 for owner in owners if labels.get(owner) == "")
    without_slide = len(set(labels) - set(owners))
    counts = [
        (len(unknown), f"slides of patients that {clinical.path.name} does not have"),
        (unlabeled, "slides of patients without a label"),
        (without_slide, "patients without a slide"),
    ]
    left_out = [f"{count} {what}" for count, what in counts if count]
    if left_out:
        _warn(f"{slides.path}: left out: {', '.join(left_out)}")


def _find_slide_column(table: Sheet, name: str | None) -> str:
    return _find_column(table, name, SLIDE_COLUMNS, "slide")


def _find_patient_column(table: Sheet, name: str | None) -> str:
    return _find_column(table, name, PATIENT_COLUMNS, "patient")


def _find_label_column(table: Sheet, name: str | None) -> str:
    return _find_column(table, name, LABEL_COLUMNS, "label")


def _find_column(table: Sheet, name: str | None, candidates: tuple[str, ...], role: str) -> str:
    if name is not None:
        return table.require_column(name, role)
    found = table.find_column(*candidates)
    if found is None:
        columns = [column for column in table.columns if column]
        more = (
            f" and {len(columns) - _MAX_COLUMNS_SHOWN} more"
            if len(columns) > _MAX_COLUMNS_SHOWN
            else ""
        )
        listed = (", ".join(columns[:_MAX_COLUMNS_SHOWN]) or "none") + more
        raise CohortError(
            table.path,
            [
                f"no column of {role}s found among {listed}; expected "
                f"{' or '.join(candidates[:3])}, or name it by `{role}`"
            ],
        )
    return found


def _find_patients(table: Sheet, name: str | None, slide: str, ids: list[str]) -> list[str]:
    column = (
        table.require_column(name, "patient")
        if name is not None
        else table.find_column(*PATIENT_COLUMNS)
    )
    if column is not None:
        return ids if column == slide else table.get_column(column)
    found = [parse_barcode(slide_id) for slide_id in ids]
    unknown = sum(patient is None for patient in found)
    if unknown:
        _warn(
            f"{table.path}: has no column of patients, so {unknown} slides count as a patient "
            "each, and slides of one patient may be on both sides of a split; name the column by "
            "`patient` (the slide column if each slide is a patient)"
        )
    else:
        _warn(
            f"{table.path}: has no column of patients; the first 12 characters of TCGA's barcodes "
            "are used"
        )
    return [patient or slide_id for patient, slide_id in zip(found, ids, strict=True)]


def _find_sites(table: Sheet, name: str | None, ids: list[str]) -> list[str]:
    if name is None:
        return [""] * len(ids)
    if name != BARCODE_SITE or table.find_column(name) is not None:
        return table.get_column(table.require_column(name, "site"))
    codes = [parse_barcode(slide_id) for slide_id in ids]
    if None in codes:
        unknown = ids[codes.index(None)]
        raise CohortError(
            table.path, [f"{unknown!r} is not a TCGA barcode; expected one, for the site"]
        )
    return [code.site if code else "" for code in codes]


def _find_label_names(table: Sheet, label: str) -> dict[str, str]:
    """Return the names of numeric labels, if a column "name" has exactly one for each."""
    column = table.find_column("name")
    labels = [normalize_number(cell) for cell in table.get_column(label)]
    numbered = label.lower() == "label" and all(is_number(text) for text in labels if text)
    if column is None or not numbered:
        return {}
    pairs = {pair for pair in zip(labels, table.get_column(column), strict=True) if all(pair)}
    names = dict(pairs)
    return names if len(pairs) == len(names) == len(set(names.values())) else {}


@lru_cache(maxsize=1024)  # a column of labels has few
def normalize_number(text: str) -> str:
    """Return a number in its shortest form, 1 rather than 1.0; other text unchanged."""
    if not is_number(text):
        return text
    value = float(text)
    return str(int(value)) if value.is_integer() else repr(value)


@lru_cache(maxsize=1024)
def is_number(text: str) -> bool:
    """Whether a label is a number."""
    return _NUMBER_PATTERN.fullmatch(text) is not None


def _warn(message: str) -> None:
    warnings.warn(message, CohortWarning, stacklevel=5)
