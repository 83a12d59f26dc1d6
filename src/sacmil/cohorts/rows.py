"""Parse one row per slide, from one table or STAMP's two, with any usual column names and ids."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from sacmil.cohorts.sheet import Sheet, list_first, read_sheet
from sacmil.errors import CohortError, CohortWarning, UnknownColumnError

SLIDE_COLUMNS = ("slide_id", "slide", "filename", "wsi", "bag_name", "slide_path", "image")
PATIENT_COLUMNS = ("patient_id", "case_id", "patient", "pat_id")
LABEL_COLUMNS = ("label", "category", "target")
_USUAL_COLUMNS = {"slide": SLIDE_COLUMNS, "patient": PATIENT_COLUMNS, "label": LABEL_COLUMNS}
BARCODE_SITE = "barcode"
"""Instead of a site column: use the tissue source site in TCGA's barcodes."""

_TIFF_SUFFIXES = {".svs", ".tif", ".tiff", ".btf", ".scn", ".bif", ".qptiff"}
_SLIDE_SUFFIXES = {".ndpi", ".mrxs", ".vms", ".vmu", ".svslide", ".dcm", ".czi", ".isyntax"}
_PICTURE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp"}
_BAG_SUFFIXES = {".h5", ".hdf5", ".pt", ".pth", ".npy", ".npz", ".zarr"}
SUFFIXES = frozenset(_TIFF_SUFFIXES | _SLIDE_SUFFIXES | _PICTURE_SUFFIXES | _BAG_SUFFIXES)
"""Of slides, pictures and bags; removed from the end of a slide's name."""
_BARCODE_PATTERN = re.compile(r"TCGA-[A-Z0-9]{2}-[A-Z0-9]{4}(?![A-Z0-9])", re.IGNORECASE)
_NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)

ColumnNames = Mapping[str, str | None]
"""Names of the columns slide, patient, label and site; None is found by the usual names."""


class SlideRow(NamedTuple):
    """The text cells of one slide."""

    location: str
    """Its line in the file, for messages."""
    slide_id: str
    patient_id: str
    label: str
    site: str = ""


class TargetRow(NamedTuple):
    """The text cells of one slide whose target is no class."""

    location: str
    """Its line in the file, for messages."""
    slide_id: str
    patient_id: str
    site: str
    cells: tuple[str, ...]
    """Of the target's columns."""
    location_of_cells: str
    """Their line in the file."""


def parse_slide_id(text: str) -> str:
    """Return a slide's id without folders and without the suffixes of slides and bags.

    >>> parse_slide_id("data/TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF.svs")
    'TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF'
    >>> parse_slide_id("007.tif.h5")
    '007'
    """
    name = text.strip().replace("\\", "/").rstrip("/").rsplit("/", 1)[-1].strip()
    while (cut := name.rfind(".")) > 0 and name[cut:].lower() in SUFFIXES:
        name = name[:cut].strip()
    return name


def parse_barcode(slide_id: str) -> str | None:
    """Return the patient of a TCGA slide, with project and site; None for any other name.

    >>> parse_barcode("TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF")
    'TCGA-3C-AALI'
    """
    found = _BARCODE_PATTERN.match(slide_id)
    return found[0].upper() if found else None


def parse_site(barcode: str) -> str:
    """Return the tissue source site of a TCGA barcode: two letters or digits for a hospital.

    >>> parse_site("TCGA-3C-AALI")
    '3C'
    """
    return barcode[5:7].upper()


def parse_rows(table: Sheet, columns: ColumnNames) -> tuple[list[SlideRow], dict[str, str]]:
    """Return the rows of a table of slides, and the names of numeric labels."""
    slide = _require_column(table, columns, "slide")
    ids = [parse_slide_id(cell) for cell in table.get_column(slide)]
    label = _require_column(table, columns, "label")
    patients = _find_patients(table, columns, slide, ids)
    sites = _get_site_cells(table, columns) or _parse_sites(table.path, columns, ids)
    where = [f"line {line}" for line in table.rows]
    cells = zip(where, ids, patients, table.get_column(label), sites, strict=True)
    return list(map(SlideRow._make, cells)), _find_label_names(table, label)


def join_rows(
    clinical: Sheet, slides: Sheet, columns: ColumnNames
) -> tuple[list[SlideRow], dict[str, str]]:
    """Return a row per slide with the label of its patient, and the names of numeric labels."""
    known = clinical.get_column(_require_column(clinical, columns, "patient"))
    lines: dict[str, list[str]] = {}
    for patient, line in zip(known, clinical.rows, strict=True):
        lines.setdefault(patient, []).append(f"line {line}")
    if problems := [
        f"patient {patient!r} occurs in several rows ({list_first(where)}); keep one"
        for patient, where in lines.items()
        if patient and len(where) > 1
    ]:
        raise CohortError(clinical.path, problems)
    label = _require_column(clinical, columns, "label")
    labels = dict(zip(known, clinical.get_column(label), strict=True))
    cells = slides.get_column(_require_column(slides, columns, "slide"))
    ids = [parse_slide_id(cell) for cell in cells]
    owners = slides.get_column(_require_column(slides, columns, "patient"))
    site_cells = _get_site_cells(clinical, columns)
    if site_cells is None:
        sites = _parse_sites(clinical.path, columns, ids)
    else:
        site_of = dict(zip(known, site_cells, strict=True))
        sites = [site_of.get(owner, "") for owner in owners]
    rows = [
        SlideRow(f"line {line} of {slides.path.name}", slide_id, owner, labels[owner], site)
        for line, slide_id, owner, site in zip(slides.rows, ids, owners, sites, strict=True)
        if labels.get(owner)
    ]
    _warn_of_left_out(clinical, slides, labels, owners)
    return rows, _find_label_names(clinical, label)


def read_target_rows(
    table: Sheet,
    slide_table: str | Path | None,
    columns: ColumnNames,
    targets: Sequence[str],
) -> list[TargetRow]:
    """Return the rows of a table with the cells of some columns, or of STAMP's two tables.

    Args:
        table: of slides; with slide_table, of patients.
        slide_table: lists the slides of each patient.
        columns: of slide, patient and site; the label is not read.
        targets: columns of the target.
    """
    names = _require_targets(table, targets)
    cells = list(zip(*map(table.get_column, names), strict=True))
    if slide_table is None:
        rows, _ = parse_rows(table, {**columns, "label": names[0]})
        return [
            TargetRow(row.location, row.slide_id, row.patient_id, row.site, own, row.location)
            for row, own in zip(rows, cells, strict=True)
        ]
    patient = _require_column(table, columns, "patient")
    lines = [f"line {line} of {table.path.name}" for line in table.rows]
    known = dict(zip(table.get_column(patient), zip(cells, lines, strict=True), strict=True))
    # with the patient in the place of the label, none is left out for an empty cell
    rows, _ = join_rows(table, read_sheet(slide_table), {**columns, "label": patient})
    return [
        TargetRow(row.location, row.slide_id, row.patient_id, row.site, *known[row.patient_id])
        for row in rows
    ]


def _require_targets(table: Sheet, targets: Sequence[str]) -> list[str]:
    """Return the columns of the targets; one error names all that are missing."""
    names, problems = [], []
    for name in targets:
        try:
            names.append(table.require_column(name, "target"))
        except UnknownColumnError as error:
            problems += error.problems
    if problems:
        raise UnknownColumnError(table.path, problems)
    return names


def _warn_of_left_out(
    clinical: Sheet, slides: Sheet, labels: Mapping[str, str], owners: list[str]
) -> None:
    """Warn of slides and patients that only one of the two tables has."""
    unknown = [owner for owner in owners if owner not in labels]
    if owners and len(unknown) == len(owners):
        found = f"none of its patients is in {clinical.path.name}: found {unknown[0]!r}"
        expected = f"expected ids such as {next(iter(labels), 'none')!r}"
        raise CohortError(slides.path, [f"{found}, {expected}; check for lost zeros and spellings"])
    counts = {
        f"slides of patients that {clinical.path.name} does not have": len(unknown),
        "slides of patients without a label": sum(labels.get(owner) == "" for owner in owners),
        "patients without a slide": len(set(labels) - set(owners)),
    }
    left_out = [f"{count} {what}" for what, count in counts.items() if count]
    if left_out:
        _warn(f"{slides.path}: left out: {', '.join(left_out)}")


def _find_column(table: Sheet, columns: ColumnNames, role: str) -> str | None:
    name = columns[role]
    if name is None:
        return table.find_column(*_USUAL_COLUMNS[role])
    return table.require_column(name, role)


def _require_column(table: Sheet, columns: ColumnNames, role: str) -> str:
    found = _find_column(table, columns, role)
    if found is None:
        expected = f"expected {' or '.join(_USUAL_COLUMNS[role][:3])}, or name it by `{role}`"
        problem = f"no column of {role}s found among {table.list_columns()}; {expected}"
        raise CohortError(table.path, [problem])
    return found


def _find_patients(table: Sheet, columns: ColumnNames, slide: str, ids: list[str]) -> list[str]:
    column = _find_column(table, columns, "patient")
    if column is not None:
        return ids if column == slide else table.get_column(column)
    found = [parse_barcode(slide_id) for slide_id in ids]
    if unknown := found.count(None):
        consequence = (
            f", so {unknown} slides count as a patient each, and slides of one patient may be on "
            "both sides of a split; name the column by `patient` (the slide column if each slide "
            "is a patient)"
        )
    else:
        consequence = "; the first 12 characters of TCGA's barcodes are used"
    _warn(f"{table.path}: has no column of patients{consequence}")
    return [patient or slide_id for patient, slide_id in zip(found, ids, strict=True)]


def _get_site_cells(table: Sheet, columns: ColumnNames) -> list[str] | None:
    """Return the column of sites; None if sites are not needed, or are in the barcodes."""
    site = columns["site"]
    if site is None or (site == BARCODE_SITE and table.find_column(site) is None):
        return None
    return table.get_column(table.require_column(site, "site"))


def _parse_sites(path: Path, columns: ColumnNames, ids: list[str]) -> list[str]:
    """Return the sites in the barcodes; empty texts if sites are not needed."""
    if columns["site"] is None:
        return [""] * len(ids)
    if unknown := [slide_id for slide_id in ids if parse_barcode(slide_id) is None]:
        problem = f"{unknown[0]!r} is not a TCGA barcode; expected one, for the site"
        raise CohortError(path, [problem])
    return list(map(parse_site, ids))


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
