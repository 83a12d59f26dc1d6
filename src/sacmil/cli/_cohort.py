"""Options for a cohort's table, shared by several commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from sacmil.cohorts.cohort import Cohort, ExtraCheck

Function = TypeVar("Function", bound=Callable[..., Any])

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _parse_class_names(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = tuple(name.strip() for name in value.split(","))
    if len(set(names)) < 2 or len(set(names)) < len(names) or not all(names):
        raise click.BadParameter(f"{value!r}; expected two or more different names, as a,b,c")
    return names


_OPTIONS = (
    click.option("--slide-column", metavar="NAME", help="Column of slide names, if not found."),
    click.option("--patient-column", metavar="NAME", help="Column of patient names, if not found."),
    click.option("--label-column", metavar="NAME", help="Column of labels, if not found."),
    click.option(
        "--classes",
        metavar="A,B",
        callback=_parse_class_names,
        help="Class names in order; other labels are an error.",
    ),
    click.option("--slide-table", type=_FILE, help="STAMP's slide table (PATIENT, FILENAME)."),
    click.option("--sheet", metavar="NAME", help="Sheet of an Excel file to read."),
    click.option(
        "--preserve",
        metavar="COLUMN",
        help="Column of sites to keep in one fold; barcode: sites from TCGA barcodes.",
    ),
)


def cohort_options(function: Function) -> Function:
    """Add the options of a cohort's table; read_cohort_table takes them."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def read_cohort_table(
    table: Path,
    *,
    slide_column: str | None = None,
    patient_column: str | None = None,
    label_column: str | None = None,
    classes: tuple[str, ...] | None = None,
    slide_table: Path | None = None,
    sheet: str | None = None,
    preserve: str | None = None,
    min_patients: int = 2,
    extra_check: ExtraCheck | None = None,
) -> Cohort:
    """Return the cohort of a table, read with the options above.

    Args:
        table: CSV or Excel.
        slide_column: name of the column of slides; None looks for it.
        patient_column: likewise, of patients.
        label_column: likewise, of labels.
        classes: class names in order.
        slide_table: STAMP's second table.
        sheet: of an Excel file.
        preserve: column of sites; new splits keep each site in one fold.
        min_patients: minimum number of patients in a class.
        extra_check: finds more problems of slides, which are reported in the same list.
    """
    from sacmil.cohorts.cohort import read_cohort

    return read_cohort(
        table,
        slide=slide_column,
        patient=patient_column,
        label=label_column,
        site=preserve,
        classes=classes,
        slide_table=slide_table,
        sheet=sheet,
        min_patients=min_patients,
        extra_check=extra_check,
    )
