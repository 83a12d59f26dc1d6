"""TCGA-LUNG and TCGA-BRCA, from files of the Genomic Data Commons (GDC).

A GDC sample sheet (gdc_sample_sheet.<date>.tsv) lists slides; only diagnostic ones (DX) are used.
A table of slides with labels may be given instead. The patient is the first 12 characters of the
barcode. The site is the two characters after "TCGA-", so that splits can keep sites in one set.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from sacmil.cohorts.cohort import Cohort, build_cohort, read_cohort
from sacmil.cohorts.rows import (
    BARCODE_SITE,
    SLIDE_COLUMNS,
    SlideRow,
    parse_barcode,
    parse_site,
    parse_slide_id,
)
from sacmil.cohorts.sheet import Sheet, read_sheet
from sacmil.errors import CohortError, CohortWarning

LUNG_CLASSES = ("LUSC", "LUAD")
BRCA_CLASSES = ("IDC", "ILC")

_FILE_COLUMN, _PROJECT_COLUMN = "File Name", "Project ID"
_DIAGNOSTIC_PATTERN = re.compile(r"-DX[A-Z0-9]*(\.|$)", re.IGNORECASE)
_CASE_COLUMNS = ("case_id", "case_submitter_id", "cases.submitter_id", "submitter_id", "patient_id")
_PATIENT_COLUMNS = (*_CASE_COLUMNS, "bcr_patient_barcode", "patient", "case id")
_DIAGNOSIS_COLUMNS = ("primary_diagnosis", "diagnoses.primary_diagnosis")
_TYPE_COLUMNS = ("histological_type", "histology", *_DIAGNOSIS_COLUMNS)
_SUBTYPE_PATTERNS = {
    "IDC": re.compile(r"idc|infiltrating duct(al)? carcinoma(, nos)?", re.IGNORECASE),
    "ILC": re.compile(r"ilc|(infiltrating )?lobular carcinoma(, nos)?", re.IGNORECASE),
}


def read_tcga_lung(*sheets: str | Path) -> Cohort:
    """Read squamous cell carcinomas and adenocarcinomas of the lung; the project is the label.

    Args:
        sheets: GDC sample sheets, of both projects or one each; or one table with labels.
    """
    read = [read_sheet(path) for path in sheets]
    if len(read) == 1 and not _is_sample_sheet(read[0]):
        return _read_labeled_table(read[0], LUNG_CLASSES)
    rows = [row for sheet in read for row in _read_diagnostic_rows(sheet)]
    where = ", ".join(map(str, sheets))
    return _build_cohort_of_classes(where, rows, LUNG_CLASSES, "slides of other projects")


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
    rows = _read_diagnostic_rows(slides)
    types = _read_types(read_sheet(clinical), column)
    rows = [
        row._replace(label=types.get(row.slide_id) or types.get(row.patient_id) or "unknown")
        for row in rows
    ]
    return _build_cohort_of_classes(sheet, rows, BRCA_CLASSES, "slides of other types")


def _build_cohort_of_classes(
    where: object, rows: Sequence[SlideRow], classes: tuple[str, ...], others: str
) -> Cohort:
    """Make a cohort of the rows of these classes; warn of the others."""
    left_out = Counter(row.label for row in rows if row.label not in classes)
    if left_out:
        listed = ", ".join(f"{name} {count}" for name, count in sorted(left_out.items()))
        message = f"left out: {left_out.total()} {others} ({listed})"
        warnings.warn(message, CohortWarning, stacklevel=3)
    return build_cohort(where, [row for row in rows if row.label in classes], classes=classes)


def _read_labeled_table(table: Sheet, classes: tuple[str, ...]) -> Cohort:
    """Read a table with labels; patients and sites come from the barcodes."""
    slide = table.find_column(*SLIDE_COLUMNS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CohortWarning)  # patients from barcodes are intended here
        cohort = read_cohort(table.path, slide=slide, site=BARCODE_SITE)
    if not set(cohort.classes) <= set(classes) and not all(c.isdecimal() for c in cohort.classes):
        found, wanted = ", ".join(cohort.classes), ", ".join(classes)
        raise CohortError(table.path, [f"has the classes {found}; expected {wanted}"])
    return cohort.restrict_to(
        slide.slide_id for slide in cohort.slides if _is_diagnostic(slide.slide_id)
    )


def _is_sample_sheet(sheet: Sheet) -> bool:
    return None not in (sheet.find_column(_FILE_COLUMN), sheet.find_column(_PROJECT_COLUMN))


def _is_diagnostic(slide_id: str) -> bool:
    return _DIAGNOSTIC_PATTERN.search(slide_id) is not None


def _read_diagnostic_rows(sheet: Sheet) -> list[SlideRow]:
    """Return the diagnostic slides in a sample sheet; the project is the label."""
    if not _is_sample_sheet(sheet):
        expected = f"expected a GDC sample sheet ({_FILE_COLUMN}, {_PROJECT_COLUMN})"
        raise CohortError(sheet.path, [f"has columns {sheet.list_columns()}; {expected}"])
    files = sheet.get_column(sheet.require_column(_FILE_COLUMN, "file"))
    projects = sheet.get_column(sheet.require_column(_PROJECT_COLUMN, "project"))
    rows = []
    for line, file, project in zip(sheet.rows, files, projects, strict=True):
        slide_id = parse_slide_id(file)
        patient = parse_barcode(slide_id)
        if patient and file.lower().endswith(".svs") and _is_diagnostic(slide_id):
            where = f"{sheet.path.name}, line {line}"
            label = project.split(",")[0].strip().removeprefix("TCGA-")
            rows.append(SlideRow(where, slide_id, patient, label, parse_site(patient)))
    if not rows:
        raise CohortError(sheet.path, ["lists no diagnostic slide (TCGA-…-DX….svs)"])
    return rows


def _read_types(table: Sheet, column: str | None) -> Mapping[str, str]:
    """Return the subtype by slide or by patient; one with two subtypes has neither."""
    key = table.find_column(*SLIDE_COLUMNS) or table.find_column(*_PATIENT_COLUMNS)
    usual = table.find_column(*_TYPE_COLUMNS, "name", "label")
    name = table.require_column(column, "type") if column else usual
    if key is None or name is None:
        expected = f"expected {_PATIENT_COLUMNS[-3]} and {_TYPE_COLUMNS[0]}, or name it by column"
        raise CohortError(table.path, [f"has columns {table.list_columns()}; {expected}"])
    found: dict[str, str] = {}
    for cell, text in zip(table.get_column(key), table.get_column(name), strict=True):
        owner, subtype = parse_slide_id(cell), _parse_subtype(text)
        found[owner] = subtype if found.get(owner, subtype) == subtype else "two types"
    return found


def _parse_subtype(text: str) -> str:
    subtypes = (name for name, pattern in _SUBTYPE_PATTERNS.items() if pattern.fullmatch(text))
    return next(subtypes, text or "unknown")
