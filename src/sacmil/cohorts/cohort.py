"""A cohort: slides with their patients and labels.

A table is a CSV or Excel file with a row per slide, in the columns of CLAM (case_id, slide_id,
label), slideflow (patient, slide, category) and others. STAMP uses two: a table of patients and a
table of their slides. docs/how-to/cohorts.md shows them all.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from sacmil.atomic import atomic_write
from sacmil.cohorts.rows import SlideRow, is_number, join_rows, normalize_number, parse_rows
from sacmil.cohorts.sheet import list_first, read_sheet
from sacmil.csv_text import escape_cells
from sacmil.errors import CohortError, check_type, suggest_names

_MAX_SMALL_CLASSES = 10
"""With more classes of too few patients, the column is assumed not to hold labels."""

ExtraCheck = Callable[[Sequence[str]], list[str]]
_Value = TypeVar("_Value")


class LabeledSlide(NamedTuple):
    """One slide of a cohort."""

    slide_id: str
    """File stem of its bag."""
    patient_id: str
    label: int
    """Index into the cohort's classes."""
    site: str = ""
    """The hospital, whose patients a split can keep in one set; empty if not used."""


@dataclass(frozen=True)
class Cohort:
    """Slides with labels; slide ids are unique.

    Example:
        >>> slides = (LabeledSlide("a", "patient 1", 0), LabeledSlide("b", "patient 2", 1))
        >>> cohort = Cohort(slides, ("normal", "tumor"))
        >>> len(cohort), list(cohort.patients)
        (2, ['patient 1', 'patient 2'])
    """

    slides: tuple[LabeledSlide, ...]
    classes: tuple[str, ...]
    """Names of the labels; their order is that of a model's outputs."""

    def __len__(self) -> int:
        return len(self.slides)

    def get_slides(self, slide_ids: Iterable[str]) -> list[LabeledSlide]:
        """Return the slides of these ids, in the given order."""
        by_id = self.by_id
        return [by_id[slide_id] for slide_id in slide_ids]

    def restrict_to(self, slide_ids: Iterable[str]) -> Self:
        """Return the cohort of only these slides, in its own order, with the same classes."""
        wanted = frozenset(slide_ids)
        return replace(self, slides=tuple(s for s in self.slides if s.slide_id in wanted))

    @cached_property
    def by_id(self) -> Mapping[str, LabeledSlide]:
        """Slides by their id."""
        return {slide.slide_id: slide for slide in self.slides}

    @cached_property
    def patients(self) -> Mapping[str, tuple[LabeledSlide, ...]]:
        """Slides of each patient; patients in the order of their ids."""
        grouped = _group((slide.patient_id, slide) for slide in self.slides)
        return {patient: tuple(grouped[patient]) for patient in sorted(grouped)}

    @property
    def labels(self) -> tuple[int, ...]:
        """The label of each slide."""
        return tuple(slide.label for slide in self.slides)

    @cached_property
    def patients_per_class(self) -> tuple[int, ...]:
        """Number of patients that have a slide of each class."""
        pairs = {(slide.patient_id, slide.label) for slide in self.slides}
        count = Counter(label for _, label in pairs)
        return tuple(count[label] for label in range(len(self.classes)))

    @cached_property
    def sha256(self) -> str:
        """Hash of the content, independent of the order of rows; stored with a run."""
        lines = ["\t".join(map(repr, self.classes)), *sorted(map(repr, map(tuple, self.slides)))]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def get_cohort(dataset: object) -> Cohort:
    """Return a cohort, or that of a dataset; reject anything else."""
    found = getattr(dataset, "cohort", dataset)
    expected = "a Dataset or a Cohort: read a table by read_cohort('table.csv')"
    check_type("dataset", found, Cohort, expected)
    assert isinstance(found, Cohort)
    return found


def _group(pairs: Iterable[tuple[str, _Value]]) -> dict[str, list[_Value]]:
    grouped: dict[str, list[_Value]] = {}
    for key, value in pairs:
        grouped.setdefault(key, []).append(value)
    return grouped


def read_cohort(
    path: str | Path,
    *,
    slide: str | None = None,
    patient: str | None = None,
    label: str | None = None,
    site: str | None = None,
    classes: Sequence[str] | None = None,
    sheet: str | None = None,
    slide_table: str | Path | None = None,
    min_patients: int = 2,
    extra_check: ExtraCheck | None = None,
) -> Cohort:
    """Read a cohort; one error lists all problems.

    Args:
        path: a table of slides; with slide_table, of patients.
        slide: column of the slides; found by its usual names if not given.
        patient: column of the patients, likewise. In a table without one, every slide is a patient
            of its own, except for TCGA, whose barcodes name the patient.
        label: column of the labels, likewise.
        site: column of the sites that a split keeps in one set. "barcode", if there is no such
            column, takes TCGA's tissue source site from the slide's name.
        classes: names of the labels in the order of the outputs; any other label is an error.
        sheet: name of the sheet in an Excel file.
        slide_table: STAMP's second table, which lists the slides of each patient.
        min_patients: fewest patients a class may have.
        extra_check: returns more problems of slide ids, such as missing bags, for the same error.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> rows = ["slide,patient,label", "a,1,no", "b,2,yes", "c,3,no", "d,4,yes"]
        >>> with TemporaryDirectory() as folder:
        ...     table = Path(folder) / "table.csv"
        ...     _ = table.write_text("\\n".join(rows))
        ...     cohort = read_cohort(table)
        >>> len(cohort), cohort.classes
        (4, ('no', 'yes'))
    """
    table = read_sheet(path, sheet=sheet)
    if not table.rows:
        raise CohortError(path, ["has a header and no rows; expected a row per slide"])
    columns = {"slide": slide, "patient": patient, "label": label, "site": site}
    if slide_table is None:
        rows, names = parse_rows(table, columns)
    else:
        rows, names = join_rows(table, read_sheet(slide_table), columns)
    return build_cohort(
        path, rows, classes=classes, names=names, min_patients=min_patients, extra_check=extra_check
    )


def write_cohort(path: str | Path, cohort: Cohort) -> None:
    """Write a table that read_cohort reads without options."""
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["slide_id", "patient_id", "site", "name", "label"])
        for slide in cohort.slides:
            name = cohort.classes[slide.label]
            texts = escape_cells([slide.slide_id, slide.patient_id, slide.site, name])
            writer.writerow([*texts, slide.label])


def build_cohort(
    where: object,
    rows: Iterable[SlideRow],
    *,
    classes: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    min_patients: int = 2,
    extra_check: ExtraCheck | None = None,
) -> Cohort:
    """Make a cohort of rows of text, or raise one error that lists all problems.

    Args:
        where: the file of the rows.
        rows: one per slide.
        classes: the labels in order; if not given they are sorted, numbers by value.
        names: of the labels, if the table has numbers and names.
        min_patients: fewest patients a class may have.
        extra_check: returns more problems of slide ids.
    """
    rows = _normalize_labels(rows)
    names = dict(names or {})
    order = _sort_labels({row.label for row in rows if row.label})
    found = tuple(names.get(label, label) for label in order)
    wanted = found if classes is None else _resolve_classes(classes, names)
    index = {name: number for number, name in enumerate(wanted)}
    slides = [
        LabeledSlide(row.slide_id, row.patient_id, index[name], row.site)
        for row in rows
        if (name := names.get(row.label, row.label)) in index
    ]
    cohort = Cohort(tuple(slides), wanted)
    problems = _find_row_problems(rows) + _find_unknown_labels(rows, names, index)
    problems += _find_site_problems(rows) + find_class_problems(cohort, min_patients)
    if classes is None:
        problems += _find_spelling_variants(found)
    if extra_check is not None:
        problems += extra_check(list(dict.fromkeys(row.slide_id for row in rows if row.slide_id)))
    if problems:
        raise CohortError(where, problems)
    return cohort


def find_class_problems(cohort: Cohort, min_patients: int = 2) -> list[str]:
    """Return problems that prevent training: a single class, classes of too few patients."""
    if min_patients < 1:
        return []
    if len(cohort.classes) < 2:
        found = ", ".join(cohort.classes) or "none"
        return [f"fewer than two classes, found {found}; check the label column"]
    counts = zip(cohort.classes, cohort.patients_per_class, strict=True)
    few = [(name, count) for name, count in counts if count < min_patients]
    if len(few) > _MAX_SMALL_CLASSES:
        return [
            f"{len(few)} of {len(cohort.classes)} labels have fewer than {min_patients} patients; "
            "expected a column of a few classes, name it by `label`"
        ]
    return [
        f"class {name!r} has {count} patient{'' if count == 1 else 's'}; expected at least "
        f"{min_patients}, leave out its slides or join it to another class"
        for name, count in few
    ]


def _normalize_labels(rows: Iterable[SlideRow]) -> list[SlideRow]:
    """Spell labels alike if all are numbers: pandas turns 1 into 1.0."""
    rows = list(rows)
    labels = {row.label for row in rows if row.label}
    plain = {label: normalize_number(label) for label in labels}
    if not all(map(is_number, labels)) or all(label == plain[label] for label in labels):
        return rows
    return [row._replace(label=plain.get(row.label, row.label)) for row in rows]


def _sort_labels(labels: set[str]) -> list[str]:
    return sorted(labels, key=float if all(map(is_number, labels)) else str)


def _resolve_classes(classes: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the given classes, which may be numbers if the table has names."""
    wanted = tuple(names.get(name, name) for name in classes)
    if len(set(wanted)) < len(wanted):
        raise CohortError("classes", [f"{', '.join(wanted)}: a name occurs twice; keep one"])
    return wanted


def _find_row_problems(rows: list[SlideRow]) -> list[str]:
    empty = [
        f"{row.location}: the {what} is empty"
        for row in rows
        for what, text in zip(("slide id", "patient", "label"), row[1:4], strict=True)
        if not text
    ]
    locations = _group((row.slide_id, row.location) for row in rows if row.slide_id)
    return empty + [
        f"slide {slide_id!r} occurs {len(where)} times ({list_first(where)}); keep one row"
        for slide_id, where in locations.items()
        if len(where) > 1
    ]


def _find_unknown_labels(
    rows: list[SlideRow], names: Mapping[str, str], index: Mapping[str, int]
) -> list[str]:
    found = _group((names.get(row.label, row.label), row.location) for row in rows if row.label)
    return [
        f"label {name!r} is unknown ({list_first(where)}); {suggest_names(name, index)}"
        for name, where in found.items()
        if name not in index
    ]


def _find_site_problems(rows: list[SlideRow]) -> list[str]:
    found = _group((row.patient_id, row.site) for row in rows if row.patient_id)
    return [
        f"patient {patient!r} has several sites ({', '.join(sorted(set(sites)))}); expected one"
        for patient, sites in found.items()
        if len(set(sites)) > 1
    ]


def _find_spelling_variants(labels: Iterable[str]) -> list[str]:
    """Return problems for labels that differ only in case and would be two classes."""
    return [
        f"labels {', '.join(map(repr, found))} differ only in case; expected one spelling, or "
        "name the classes by `classes`"
        for found in _group((label.casefold(), label) for label in labels).values()
        if len(found) > 1
    ]
