"""TCGA-LUNG and TCGA-BRCA, from files of the Genomic Data Commons (GDC).

A GDC sample sheet (gdc_sample_sheet.<date>.tsv) lists slides; only diagnostic ones (DX) are used.
A table of slides with labels may be given instead. The patient is the first 12 characters of the
barcode. The site is the two characters after "TCGA-", so that splits can keep sites in one set.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from sacmil.cohorts.cohort import Cohort, build_cohort, read_cohort
from sacmil.cohorts.rows import SLIDE_COLUMNS, SlideRow
from sacmil.cohorts.sheet import Sheet, read_sheet
from sacmil.cohorts.slide_id import parse_barcode, parse_slide_id
from sacmil.errors import CohortError, CohortWarning

LUNG_CLASSES = ("LUSC", "LUAD")
BRCA_CLASSES = ("IDC", "ILC")

_FILE_COLUMN, _PROJECT_COLUMN = "File Name", "Project ID"
_DIAGNOSTIC_PATTERN = re.compile(r"-DX[A-Z0-9]*(\.|$)", re.IGNORECASE)
_CASE_COLUMNS = ("case_id", "case_submitter_id", "cases.submitter_id", "submitter_id", "patient_id")
_PATIENT_COLUMNS = (*_CASE_COLUMNS, "bcr_patient_barcode", "patient", "case id")
_TYPE_COLUMNS = (
    "histological_type",
    "histology",
    "primary_diagnosis",
    "diagnoses.primary_diagnosis",
)
_DUCTAL_PATTERN = re.compile(r"idc|infiltrating duct(al)? carcinoma(, nos)?", re.IGNORECASE)
_LOBULAR_PATTERN = re.compile(r"ilc|(infiltrating )?lobular carcinoma(, nos)?", re.IGNORECASE)


def read_tcga_lung(*sheets: str | Path) -> Cohort:
    """Read squamous cell carcinomas and adenocarcinomas of the lung; the project is the label.

    Args:
        sheets: GDC sample sheets, of both projects or one each; or one table with labels.
    """
    read = [read_sheet(path) for path in sheets]
    if len(read) == 1 and not _is_sample_sheet(read[0]):
        return _read_labeled_table(read[0], LUNG_CLASSES)
    rows = []
    for where, slide_id, project in (
        found for sheet in read for found in _list_diagnostic_slides(sheet)
    ):
        rows.append(_make_row(where, slide_id, project.removeprefix("TCGA-")))
    kept = [row for row in rows if row.label in LUNG_CLASSES]
    _warn_of_left_out(
        "slides of other projects",
        Counter(row.label for row in rows if row.label not in LUNG_CLASSES),
    )
    return build_cohort(", ".join(map(str, sheets)), kept, classes=LUNG_CLASSES)


def read_tcga_brca(
    sheet: str | Path, clinical: str | Path | None = None, *, column: str | None = None
) -> Cohort:
    """Read ductal and lobular carcinomas of the breast; patients of other types are left out.

    Args:
        sheet: a GDC sample sheet; or, without clinical, a table with labels.
        clinical: a table of the histological type of each patient, or IDC and ILC for each
            slide; needed with a sample sheet.
        column: of the histological type, if it has an unusual name.
    """
    slides = read_sheet(sheet)
    if clinical is None:
        if _is_sample_sheet(slides):
            raise CohortError(sheet, ["holds no histological types; give a clinical table as well"])
        return _read_labeled_table(slides, BRCA_CLASSES)
    listed = _list_diagnostic_slides(slides)
    types = _read_types(read_sheet(clinical), column)
    rows = [_make_row(where, name, _find_type(name, types)) for where, name, _ in listed]
    kept = [row for row in rows if row.label in BRCA_CLASSES]
    _warn_of_left_out(
        "slides of other types", Counter(row.label for row in rows if row.label not in BRCA_CLASSES)
    )
    return build_cohort(sheet, kept, classes=BRCA_CLASSES)


def _read_labeled_table(table: Sheet, classes: tuple[str, ...]) -> Cohort:
    """Read a table with labels; patients and sites come from the barcodes."""
    slide = table.find_column(*SLIDE_COLUMNS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CohortWarning)  # patients from barcodes are intended here
        cohort = read_cohort(table.path, slide=slide, site="barcode")
    if not set(cohort.classes) <= set(classes) and not all(c.isdecimal() for c in cohort.classes):
        found, wanted = ", ".join(cohort.classes), ", ".join(classes)
        raise CohortError(table.path, [f"has the classes {found}; expected {wanted}"])
    return cohort.restrict_to(
        slide.slide_id for slide in cohort.slides if _is_diagnostic(slide.slide_id)
    )


def _is_sample_sheet(sheet: Sheet) -> bool:
    return (
        sheet.find_column(_FILE_COLUMN) is not None
        and sheet.find_column(_PROJECT_COLUMN) is not None
    )


def _is_diagnostic(slide_id: str) -> bool:
    return _DIAGNOSTIC_PATTERN.search(slide_id) is not None


def _list_diagnostic_slides(sheet: Sheet) -> list[tuple[str, str, str]]:
    """Return line, id and project of the diagnostic slides in a sample sheet."""
    if not _is_sample_sheet(sheet):
        listed = ", ".join(sheet.columns)
        raise CohortError(
            sheet.path,
            [
                f"has columns {listed}; expected a GDC sample sheet ({_FILE_COLUMN}, "
                f"{_PROJECT_COLUMN})"
            ],
        )
    files = sheet.get_column(sheet.require_column(_FILE_COLUMN, "file"))
    projects = sheet.get_column(sheet.require_column(_PROJECT_COLUMN, "project"))
    found = zip(sheet.line_numbers, map(parse_slide_id, files), files, projects, strict=True)
    rows = [
        (f"{sheet.path.name}, line {line}", slide_id, project.split(",")[0].strip())
        for line, slide_id, file, project in found
        if file.lower().endswith(".svs") and _is_diagnostic(slide_id) and parse_barcode(slide_id)
    ]
    if not rows:
        raise CohortError(sheet.path, ["lists no diagnostic slide (TCGA-…-DX….svs)"])
    return rows


def _make_row(where: str, slide_id: str, label: str) -> SlideRow:
    patient = parse_barcode(slide_id)
    assert patient is not None, slide_id  # _list_diagnostic_slides returns only barcodes
    return SlideRow(where, slide_id, patient, label, patient.site)


def _read_types(table: Sheet, column: str | None) -> dict[str, str]:
    """Return the subtype by slide or by patient; one with two subtypes has neither."""
    key = table.find_column(*SLIDE_COLUMNS) or table.find_column(*_PATIENT_COLUMNS)
    name = (
        table.require_column(column, "type")
        if column
        else table.find_column(*_TYPE_COLUMNS, "name", "label")
    )
    if key is None or name is None:
        listed = ", ".join(column for column in table.columns if column)
        raise CohortError(
            table.path,
            [
                f"has columns {listed}; expected {_PATIENT_COLUMNS[-3]} and {_TYPE_COLUMNS[0]}, "
                "or name it by column"
            ],
        )
    found: dict[str, str] = {}
    for owner, text in zip(table.get_column(key), table.get_column(name), strict=True):
        subtype = _parse_subtype(text)
        owner = parse_slide_id(owner)
        found[owner] = subtype if found.get(owner, subtype) == subtype else "two types"
    return found


def _parse_subtype(text: str) -> str:
    if _DUCTAL_PATTERN.fullmatch(text):
        return BRCA_CLASSES[0]
    return BRCA_CLASSES[1] if _LOBULAR_PATTERN.fullmatch(text) else text or "unknown"


def _find_type(slide_id: str, types: Mapping[str, str]) -> str:
    return types.get(slide_id) or types.get(parse_barcode(slide_id) or "") or "unknown"


def _warn_of_left_out(what: str, counts: Mapping[str, int]) -> None:
    if counts:
        listed = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        message = f"left out: {sum(counts.values())} {what} ({listed})"
        warnings.warn(message, CohortWarning, stacklevel=3)
