"""What every command says about a cohort's table in the same way."""

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
    click.option("--slide-column", metavar="NAME", help="Column of the slides, if not found."),
    click.option("--patient-column", metavar="NAME", help="Column of the patients, likewise."),
    click.option("--label-column", metavar="NAME", help="Column of the labels, likewise."),
    click.option(
        "--classes",
        metavar="A,B",
        callback=_parse_class_names,
        help="Labels in order; others are refused.",
    ),
    click.option("--slide-table", type=_FILE, help="STAMP's second table: PATIENT, FILENAME."),
    click.option("--sheet", metavar="NAME", help="Which sheet of an Excel file."),
    click.option(
        "--preserve",
        metavar="COLUMN",
        help="Keep sites whole in new splits; barcode: TCGA's tissue source sites.",
    ),
)


def cohort_options(function: Function) -> Function:
    """Options of a command that reads a cohort; pass them on to read_cohort."""
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
    """The cohort of a table, by the options above.

    Args:
        table: CSV or Excel.
        slide_column: and the other columns, as given on the command line.
        patient_column: likewise.
        label_column: likewise.
        classes: order of the labels.
        slide_table: STAMP's second table.
        sheet: of an Excel file.
        preserve: column of the sites; splits made anew keep them whole.
        min_patients: fewest patients of a class.
        extra_check: finds more that is wrong with slides, to be told in the same list.
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
