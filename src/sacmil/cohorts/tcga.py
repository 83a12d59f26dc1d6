"""TCGA-LUNG and TCGA-BRCA, from the files the Genomic Data Commons offers for download.

A GDC sample sheet (gdc_sample_sheet.<date>.tsv) lists slides; only diagnostic ones (DX) are taken.
Instead of it, a table of slides with labels may be given. The patient is the first 12 characters
of the barcode, and the site the two after "TCGA-", so that splits can keep hospitals whole.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from sacmil.cohorts.rows import SLIDE, Row
from sacmil.cohorts.sheet import Sheet, read_sheet
from sacmil.cohorts.slide_name import barcode, slide_name
from sacmil.cohorts.table import Cohort, build_cohort, read_table
from sacmil.errors import CohortError, CohortWarning

LUNG = ("LUSC", "LUAD")
BRCA = ("IDC", "ILC")

_FILE, _PROJECT = "File Name", "Project ID"
_DIAGNOSTIC = re.compile(r"-DX[A-Z0-9]*(\.|$)", re.IGNORECASE)
_CASE = ("case_id", "case_submitter_id", "cases.submitter_id", "submitter_id", "patient_id")
_CASES = (*_CASE, "bcr_patient_barcode", "patient", "case id")
_TYPES = ("histological_type", "histology", "primary_diagnosis", "diagnoses.primary_diagnosis")
_DUCTAL = re.compile(r"idc|infiltrating duct(al)? carcinoma(, nos)?", re.IGNORECASE)
_LOBULAR = re.compile(r"ilc|(infiltrating )?lobular carcinoma(, nos)?", re.IGNORECASE)


def tcga_lung(*sheets: str | Path) -> Cohort:
    """Squamous cell carcinoma or adenocarcinoma; the project a slide is of says which.

    Args:
        sheets: GDC sample sheets, of both projects or one each; or one table with labels.
    """
    read = [read_sheet(path) for path in sheets]
    if len(read) == 1 and not _is_sample_sheet(read[0]):
        return _labelled(read[0], LUNG)
    rows = []
    for where, slide_id, project in (found for sheet in read for found in _diagnostic(sheet)):
        rows.append(_row(where, slide_id, project.removeprefix("TCGA-")))
    kept = [row for row in rows if row.label in LUNG]
    _tell("slides of other projects", Counter(row.label for row in rows if row.label not in LUNG))
    return build_cohort(", ".join(map(str, sheets)), kept, classes=LUNG)


def tcga_brca(
    sheet: str | Path, clinical: str | Path | None = None, *, column: str | None = None
) -> Cohort:
    """Ductal or lobular carcinoma of the breast; patients of other types are left out.

    Args:
        sheet: a GDC sample sheet; or, alone, a table with labels.
        clinical: a table that has the histological type of each patient, or IDC and ILC for each
            slide; needed with a sample sheet.
        column: of the histological type, where it is not called so.
    """
    slides = read_sheet(sheet)
    if clinical is None:
        if _is_sample_sheet(slides):
            raise CohortError(sheet, ["does not say what is ductal; give a clinical table too"])
        return _labelled(slides, BRCA)
    listed = _diagnostic(slides)
    types = _types(read_sheet(clinical), column)
    rows = [_row(where, name, _type_of(name, types)) for where, name, _ in listed]
    kept = [row for row in rows if row.label in BRCA]
    _tell("slides of other types", Counter(row.label for row in rows if row.label not in BRCA))
    return build_cohort(sheet, kept, classes=BRCA)


def _labelled(table: Sheet, classes: tuple[str, ...]) -> Cohort:
    """The cohort of a table that has labels itself; barcodes say the rest."""
    slide = table.find(*SLIDE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CohortWarning)  # that barcodes name patients is known here
        cohort = read_table(table.path, slide=slide, site="barcode")
    if not set(cohort.classes) <= set(classes) and not all(c.isdecimal() for c in cohort.classes):
        found, wanted = ", ".join(cohort.classes), ", ".join(classes)
        raise CohortError(table.path, [f"has the classes {found}; expected {wanted}"])
    return cohort.only(slide.slide_id for slide in cohort.slides if _is_diagnostic(slide.slide_id))


def _is_sample_sheet(sheet: Sheet) -> bool:
    return sheet.find(_FILE) is not None and sheet.find(_PROJECT) is not None


def _is_diagnostic(slide_id: str) -> bool:
    return _DIAGNOSTIC.search(slide_id) is not None


def _diagnostic(sheet: Sheet) -> list[tuple[str, str, str]]:
    """Line, id and project of the diagnostic slides in a sample sheet."""
    if not _is_sample_sheet(sheet):
        listed = ", ".join(sheet.columns)
        raise CohortError(
            sheet.path, [f"has columns {listed}; expected a GDC sample sheet ({_FILE}, {_PROJECT})"]
        )
    files = sheet.column(sheet.demand(_FILE, "file"))
    projects = sheet.column(sheet.demand(_PROJECT, "project"))
    found = zip(sheet.lines, map(slide_name, files), files, projects, strict=True)
    rows = [
        (f"{sheet.path.name}, line {line}", slide_id, project.split(",")[0].strip())
        for line, slide_id, file, project in found
        if file.lower().endswith(".svs") and _is_diagnostic(slide_id) and barcode(slide_id)
    ]
    if not rows:
        raise CohortError(sheet.path, ["lists no diagnostic slide (TCGA-…-DX….svs)"])
    return rows


def _row(where: str, slide_id: str, label: str) -> Row:
    patient = barcode(slide_id)
    assert patient is not None, slide_id  # _diagnostic kept TCGA's alone
    return Row(where, slide_id, patient, label, patient.site)


def _types(table: Sheet, column: str | None) -> dict[str, str]:
    """Subtype by slide or by patient; one that is given two is of neither."""
    key = table.find(*SLIDE) or table.find(*_CASES)
    name = table.demand(column, "type") if column else table.find(*_TYPES, "name", "label")
    if key is None or name is None:
        listed = ", ".join(column for column in table.columns if column)
        raise CohortError(
            table.path,
            [f"has columns {listed}; expected {_CASES[-3]} and {_TYPES[0]}, or name it by column"],
        )
    found: dict[str, str] = {}
    for owner, text in zip(table.column(key), table.column(name), strict=True):
        subtype = _subtype(text)
        owner = slide_name(owner)
        found[owner] = subtype if found.get(owner, subtype) == subtype else "two types"
    return found


def _subtype(text: str) -> str:
    if _DUCTAL.fullmatch(text):
        return BRCA[0]
    return BRCA[1] if _LOBULAR.fullmatch(text) else text or "not told"


def _type_of(slide_id: str, types: Mapping[str, str]) -> str:
    return types.get(slide_id) or types.get(barcode(slide_id) or "") or "not told"


def _tell(what: str, counts: Mapping[str, int]) -> None:
    if counts:
        listed = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        message = f"left out: {sum(counts.values())} {what} ({listed})"
        warnings.warn(message, CohortWarning, stacklevel=3)
