"""A row of text per slide, out of one table or of STAMP's two, whatever the columns are called."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from sacmil.cohorts.sheet import Sheet
from sacmil.cohorts.slide_name import barcode, slide_name
from sacmil.errors import CohortError, CohortWarning

SLIDE = ("slide_id", "slide", "filename", "wsi", "bag_name", "slide_path", "image")
PATIENT = ("patient_id", "case_id", "patient", "pat_id")
LABEL = ("label", "category", "target")
BARCODE = "barcode"
"""In the place of a site column: the tissue source site in TCGA's barcodes."""

_SHOWN = 20
"""Columns that a message lists."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


class Row(NamedTuple):
    """A slide as its table has it, in text."""

    where: str
    """For messages: the line it stands on."""
    slide_id: str
    patient_id: str
    label: str
    site: str = ""


class Columns(NamedTuple):
    """Names of columns that were given; those that were not are found."""

    slide: str | None
    patient: str | None
    label: str | None
    site: str | None


def rows_of(table: Sheet, asked: Columns) -> tuple[list[Row], dict[str, str]]:
    """Rows of a table of slides, and the names its labels have where they are numbers."""
    slide = _slide_column(table, asked.slide)
    ids = [slide_name(cell) for cell in table.column(slide)]
    label = _label_column(table, asked.label)
    patients = _patients(table, asked.patient, slide, ids)
    sites = _sites(table, asked.site, ids)
    where = [f"line {line}" for line in table.lines]
    cells = zip(where, ids, patients, table.column(label), sites, strict=True)
    return list(map(Row._make, cells)), _names(table, label)


def joined_rows(clinical: Sheet, slides: Sheet, asked: Columns) -> tuple[list[Row], dict[str, str]]:
    """A row per slide, with what the table of patients says of its patient."""
    known = clinical.column(_patient_column(clinical, asked.patient))
    _refuse_repeated(clinical, known)
    label = _label_column(clinical, asked.label)
    labels = dict(zip(known, clinical.column(label), strict=True))
    ids = [slide_name(cell) for cell in slides.column(_slide_column(slides, asked.slide))]
    owners = slides.column(_patient_column(slides, asked.patient))
    sites = _joined_sites(clinical, known, owners, asked.site, ids)
    rows = [
        Row(f"line {line} of {slides.path.name}", slide_id, owner, labels[owner], site)
        for line, slide_id, owner, site in zip(slides.lines, ids, owners, sites, strict=True)
        if labels.get(owner)
    ]
    _tell_left_out(clinical, slides, labels, owners)
    return rows, _names(clinical, label)


def _joined_sites(
    clinical: Sheet, known: list[str], owners: list[str], site: str | None, ids: list[str]
) -> list[str]:
    if site is None or (site == BARCODE and clinical.find(site) is None):
        return _sites(clinical, site, ids)
    of = dict(zip(known, clinical.column(clinical.demand(site, "site")), strict=True))
    return [of.get(owner, "") for owner in owners]


def _refuse_repeated(clinical: Sheet, patients: list[str]) -> None:
    repeated = [patient for patient, count in Counter(patients).items() if patient and count > 1]
    if repeated:
        raise CohortError(
            clinical.path,
            [f"patient {patient!r} stands in several rows; keep one" for patient in repeated],
        )


def _tell_left_out(
    clinical: Sheet, slides: Sheet, labels: Mapping[str, str], owners: list[str]
) -> None:
    """A table of patients usually knows more, or less, than the slides at hand: say how much."""
    strangers = [owner for owner in owners if owner not in labels]
    if owners and len(strangers) == len(owners):
        raise CohortError(
            slides.path,
            [
                f"no patient of it is in {clinical.path.name}: found {strangers[0]!r}, expected "
                f"ids such as {next(iter(labels), 'none')!r}; check for lost zeros and spellings"
            ],
        )
    unlabelled = sum(1 for owner in owners if labels.get(owner) == "")
    without = len(set(labels) - set(owners))
    told = [
        (len(strangers), f"slides of patients that {clinical.path.name} does not have"),
        (unlabelled, "slides of patients without a label"),
        (without, "patients without a slide"),
    ]
    left = [f"{count} {what}" for count, what in told if count]
    if left:
        _warn(f"{slides.path}: left out: {', '.join(left)}")


def _slide_column(table: Sheet, name: str | None) -> str:
    return _column(table, name, SLIDE, "slide")


def _patient_column(table: Sheet, name: str | None) -> str:
    return _column(table, name, PATIENT, "patient")


def _label_column(table: Sheet, name: str | None) -> str:
    return _column(table, name, LABEL, "label")


def _column(table: Sheet, name: str | None, usual: tuple[str, ...], what: str) -> str:
    if name is not None:
        return table.demand(name, what)
    found = table.find(*usual)
    if found is None:
        columns = [column for column in table.columns if column]
        more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
        listed = (", ".join(columns[:_SHOWN]) or "none") + more
        raise CohortError(
            table.path,
            [
                f"no column of {what}s found among {listed}; expected {' or '.join(usual[:3])}, or "
                f"say which by --{what}-column NAME ({what}=NAME)"
            ],
        )
    return found


def _patients(table: Sheet, name: str | None, slide: str, ids: list[str]) -> list[str]:
    column = table.demand(name, "patient") if name is not None else table.find(*PATIENT)
    if column is not None:
        return ids if column == slide else table.column(column)
    found = [barcode(slide_id) for slide_id in ids]
    strangers = sum(patient is None for patient in found)
    if strangers:
        _warn(
            f"{table.path}: has no column of patients, so {strangers} slides count as a patient "
            "each, and slides of one patient may end on both sides of a split; name the column by "
            "--patient-column (the slide column where slides are patients)"
        )
    else:
        _warn(
            f"{table.path}: has no column of patients; the first 12 characters of TCGA's barcodes "
            "are taken"
        )
    return [patient or slide_id for patient, slide_id in zip(found, ids, strict=True)]


def _sites(table: Sheet, name: str | None, ids: list[str]) -> list[str]:
    if name is None:
        return [""] * len(ids)
    if name != BARCODE or table.find(name) is not None:
        return table.column(table.demand(name, "site"))
    codes = [barcode(slide_id) for slide_id in ids]
    if None in codes:
        stranger = ids[codes.index(None)]
        raise CohortError(table.path, [f"{stranger!r} is no TCGA barcode and names no site"])
    return [code.site if code else "" for code in codes]


def _names(table: Sheet, label: str) -> dict[str, str]:
    """Names of numbered labels, where a column called name has exactly one for each."""
    column = table.find("name")
    labels = [plain_number(cell) for cell in table.column(label)]
    numbered = label.lower() == "label" and all(is_number(text) for text in labels if text)
    if column is None or not numbered:
        return {}
    pairs = {pair for pair in zip(labels, table.column(column), strict=True) if all(pair)}
    names = dict(pairs)
    return names if len(pairs) == len(names) == len(set(names.values())) else {}


@lru_cache(maxsize=1024)  # a column of labels has few
def plain_number(text: str) -> str:
    """A number as one would write it, 1 rather than 1.0; other text as it is."""
    if not is_number(text):
        return text
    value = float(text)
    return str(int(value)) if value.is_integer() else repr(value)


@lru_cache(maxsize=1024)
def is_number(text: str) -> bool:
    """Whether a label is one."""
    return _NUMBER.fullmatch(text) is not None


def _warn(message: str) -> None:
    warnings.warn(message, CohortWarning, stacklevel=5)
