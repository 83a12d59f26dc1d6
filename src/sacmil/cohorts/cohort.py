"""A cohort: slides with their patients and labels.

A table is a CSV or Excel file with a row per slide, in the columns of CLAM (case_id, slide_id,
label), slideflow (patient, slide, category) and others. STAMP uses two: a table of patients and a
table of their slides. docs/how-to/cohorts.md shows them all.
"""

from __future__ import annotations

import csv
import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from sacmil.atomic import atomic_write
from sacmil.cohorts.rows import (
    LABEL_COLUMNS,
    SlideRow,
    TargetRow,
    is_number,
    join_rows,
    normalize_number,
    parse_rows,
    read_target_rows,
)
from sacmil.cohorts.sheet import Sheet, list_first, read_sheet
from sacmil.csv_text import escape_cells
from sacmil.errors import (
    CohortError,
    CohortWarning,
    OptionError,
    check_type,
    format_count,
    suggest_names,
)
from sacmil.tasks import Classification, Task, list_tasks, make_task

_MAX_SMALL_CLASSES = 10
"""With more classes of too few patients, the column is assumed not to hold labels."""

ExtraCheck = Callable[[Sequence[str]], list[str]]
_Value = TypeVar("_Value")


Label = int | tuple[float, ...]


class LabeledSlide(NamedTuple):
    """One slide of a cohort."""

    slide_id: str
    """File stem of its bag."""
    patient_id: str
    label: Label
    """Index into the cohort's classes or levels; for other targets their values, NaN if unknown."""
    site: str = ""
    """The hospital, whose patients a split can keep in one set; empty if not used."""

    @property
    def class_index(self) -> int:
        """The label of a class or level."""
        assert isinstance(self.label, int)
        return self.label

    @property
    def targets(self) -> tuple[float, ...]:
        """The label as numbers, one per target column."""
        return self.label if isinstance(self.label, tuple) else (float(self.label),)


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
    classes: tuple[str, ...] = ()
    """Names of the classes or levels, in the order of a model's outputs; empty for numbers."""
    task: Task = None  # type: ignore[assignment]  # set below: it depends on the classes
    """What is predicted; by default the classes."""

    def __post_init__(self) -> None:
        if self.task is None:
            object.__setattr__(self, "task", Classification(tuple(self.classes)))
        object.__setattr__(self, "classes", self.task.levels)

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
    def labels(self) -> tuple[Label, ...]:
        """The label of each slide."""
        return tuple(slide.label for slide in self.slides)

    @property
    def targets(self) -> npt.NDArray[np.float64]:
        """(slides, T), the labels as numbers."""
        width = len(self.task.target_columns)
        listed = [slide.targets for slide in self.slides]
        return np.array(listed, dtype=np.float64).reshape(len(listed), width)

    @property
    def targets_by_patient(self) -> npt.NDArray[np.float64]:
        """(patients, T), those of each patient's first slide."""
        first = [slides[0].targets for slides in self.patients.values()]
        width = len(self.task.target_columns)
        return np.array(first, dtype=np.float64).reshape(len(first), width)

    @property
    def learned_targets(self) -> npt.NDArray[np.float64]:
        """Targets as the task learns from them: a row per slide, or per patient."""
        return self.targets_by_patient if self.task.learns_by_patient else self.targets

    def describe_targets(self) -> str:
        """Return what was read from the columns of the targets, for people to check; or nothing."""
        return self.task.describe_targets(self.targets_by_patient)

    @cached_property
    def patients_per_class(self) -> tuple[int, ...]:
        """Number of patients that have a slide of each class or level."""
        pairs = {(slide.patient_id, slide.label) for slide in self.slides}
        count = Counter(label for _, label in pairs)
        return tuple(count[label] for label in range(len(self.classes)))

    @cached_property
    def strata(self) -> Mapping[str, int]:
        """The group of each patient that folds are stratified by.

        If the slides of a patient are in several, it is that with fewest patients.
        """
        groups = self.task.strata(self.targets).tolist()
        pairs = list(zip((slide.patient_id for slide in self.slides), groups, strict=True))
        count = Counter(group for _, group in set(pairs))
        found = {
            patient: min(of, key=lambda group: (count[group], group))
            for patient, of in _group(pairs).items()
        }
        return {patient: found[patient] for patient in self.patients}

    @cached_property
    def sha256(self) -> str:
        """Hash of the content, independent of the order of rows; stored with a run."""
        lines = ["\t".join(map(repr, self.classes)), *sorted(map(repr, map(tuple, self.slides)))]
        if not self.task.card.is_classification:
            lines.append(repr((self.task.kind, self.task.source_columns)))
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
    task: Task | str | Mapping[str, Any] | None = None,
    **settings: Any,
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
        min_patients: fewest patients a class may have; 0 if nothing is learned from the table, so
            that a single value is no problem either.
        extra_check: returns more problems of slide ids, such as missing bags, for the same error.
        task: what is predicted, such as ``Regression("ki67")``, or the name of a task; the classes
            in the column of labels if not given.
        settings: of the task, if it is given by name or not at all, such as ``targets="ki67"``,
            ``order=("low", "high")``, ``labels=("er", "pr")`` or ``time="months"``.

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
    target = resolve_task(task, table=table, label=label, classes=classes, **settings)
    if isinstance(target, Classification):
        classes = target.classes
    elif target is not None:
        target = target.find_columns(table.columns)
        cells = read_target_rows(table, slide_table, columns, target.source_columns)
        return build_target_cohort(
            path, cells, target, min_patients=min_patients, extra_check=extra_check
        )
    if slide_table is None:
        rows, names = parse_rows(table, columns)
    else:
        rows, names = join_rows(table, read_sheet(slide_table), columns)
    return build_cohort(
        path, rows, classes=classes, names=names, min_patients=min_patients, extra_check=extra_check
    )


def write_cohort(path: str | Path, cohort: Cohort) -> None:
    """Write a table that read_cohort reads without options, or for other targets by their task."""
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not cohort.task.has_classes:
            columns = ["slide_id", "patient_id", "site", *cohort.task.source_columns]
            writer.writerow(escape_cells(columns))
            for slide in cohort.slides:
                ids = [slide.slide_id, slide.patient_id, slide.site]
                cells = cohort.task.format_source(slide.targets)
                writer.writerow(escape_cells([*ids, *cells]))
            return
        writer.writerow(["slide_id", "patient_id", "site", "name", "label"])
        for slide in cohort.slides:
            name = cohort.classes[slide.class_index]
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


KIND_OF_SETTING = {
    **{"targets": "regression", "order": "ordinal", "labels": "multilabel"},
    **{"time": "survival", "event": "survival"},
}
"""Settings that only one kind of task has, and that choose it."""
_SURVIVAL_SETTINGS = ("unit", "horizons", "curve_times", "bins", "alpha", "ties")
_OWNERS = {**KIND_OF_SETTING, **dict.fromkeys(_SURVIVAL_SETTINGS, "survival")}
"""Settings that only one kind of this package has; those of other packages may have them too."""


def resolve_task(
    task: Task | str | Mapping[str, Any] | None,
    *,
    table: Sheet,
    label: str | None = None,
    classes: Sequence[str] | None = None,
    **settings: Any,
) -> Task | None:
    """Return the task of the arguments of read_cohort; None for classes found in the table."""
    settings = {name: value for name, value in settings.items() if value is not None}
    if isinstance(task, Mapping):
        settings = {**task, **settings}
        task = settings.pop("kind", None)
    is_named = task is not None
    if task is None:
        task = next((kind for name, kind in KIND_OF_SETTING.items() if name in settings), None)
    if task is not None:
        expected = "a task such as sacmil.tasks.Regression('ki67'), or its name"
        check_type("task", task, (str, Task), expected)
    _check_settings_are_of_one_task(settings)
    _check_settings_are_of(task, settings)
    if isinstance(task, str) and (task != Classification.kind or "classes" in settings):
        task = make_task(task, **settings)
        usual = table.find_column(*LABEL_COLUMNS)
        if label is None and usual is not None and "column" not in settings:
            task = task.with_label_column(usual) or task
    elif settings:
        name = next(iter(settings))
        expected = (
            f"only the task {_OWNERS[name]} has it: expected `task={_OWNERS[name]}`"
            if name in _OWNERS
            else f"expected a task that has it, one of {', '.join(list_tasks())}"
        )
        raise OptionError(f"`{name}` is given, but the task is {_describe_task(task)}; {expected}")
    if not isinstance(task, Task):
        return None
    if classes is not None:
        other = "task" if is_named else next(name for name in settings if name in KIND_OF_SETTING)
        raise OptionError(f"`classes` and `{other}` are both given; expected one of them")
    return task if isinstance(task, Classification) else _select_label_column(task, label)


def _check_settings_are_of_one_task(settings: Iterable[str]) -> None:
    owners = {KIND_OF_SETTING[name]: name for name in settings if name in KIND_OF_SETTING}
    if len(owners) > 1:
        (first, one), (second, other), *_ = owners.items()
        raise OptionError(
            f"`{one}` is a setting of the task {first} and `{other}` of the task {second}; leave "
            "one out"
        )


def _check_settings_are_of(task: object, settings: Iterable[str]) -> None:
    """Reject a setting that only another task of this package has."""
    if not isinstance(task, str) or task not in {*_OWNERS.values(), Classification.kind}:
        return
    for name in settings:
        if _OWNERS.get(name, task) != task:
            raise OptionError(
                f"`{name}` is a setting of the task {_OWNERS[name]}, not of the task {task}; leave "
                "one out"
            )


def _describe_task(task: object) -> str:
    return task.card.description if isinstance(task, Task) else "classes"


def _select_label_column(task: Task, label: str | None) -> Task:
    """Return the task with the column of labels that was named; reject a task without labels."""
    if label is None or label in task.source_columns:
        return task
    changed = task.with_label_column(label)
    if changed is not None:
        return changed
    columns = ", ".join(filter(None, task.source_columns)) or " and ".join(task.target_columns)
    raise OptionError(
        f"`label` is {label!r}, but the task {task.kind} reads {columns}; leave it out"
    )


def build_target_cohort(
    where: object,
    rows: Sequence[TargetRow],
    task: Task,
    *,
    min_patients: int = 2,
    extra_check: ExtraCheck | None = None,
) -> Cohort:
    """Make a cohort of rows of text whose targets a task reads; one error lists all problems.

    Args:
        where: the file of the rows.
        rows: one per slide.
        task: reads the targets.
        min_patients: 0 accepts a target with a single value, and warns of no absent one.
        extra_check: returns more problems of slide ids.
    """
    import pandas

    labeled = [SlideRow(row.location, row.slide_id, row.patient_id, "-", row.site) for row in rows]
    problems = _find_row_problems(labeled) + _find_site_problems(labeled)
    frame = pandas.DataFrame(
        [row.cells for row in rows],
        columns=list(task.source_columns),
        index=[row.location_of_cells for row in rows],
        dtype=object,
    )
    targets = np.full((len(rows), len(task.target_columns)), np.nan)
    try:
        targets = task.read(frame)
    except CohortError as error:
        problems += error.problems
    else:
        problems += _find_disagreements(task, rows, targets)
        problems += _find_training_problems(task, rows, targets) if min_patients else []
    if extra_check is not None:
        problems += extra_check(list(dict.fromkeys(row.slide_id for row in rows if row.slide_id)))
    if problems:
        raise CohortError(where, problems)
    slides = tuple(_label_rows(where, rows, task, targets))
    used = np.array([slide.targets for slide in slides], dtype=np.float64)
    if not slides:
        return Cohort(slides, task=task)
    cohort = Cohort(slides, task=task.complete(used))
    absent = task.describe_absent(used) if min_patients else ""
    for text in filter(None, (absent, task.describe_implausible(cohort.learned_targets))):
        warnings.warn(f"{where}: {text}", CohortWarning, stacklevel=3)
    return cohort


def _find_training_problems(
    task: Task, rows: Sequence[TargetRow], targets: npt.NDArray[np.float64]
) -> list[str]:
    """Return why nothing can be learned from the rows of a table."""
    pairs = zip(rows, task.find_left_out(targets).tolist(), strict=True)
    used = [number for number, (_, left_out) in enumerate(pairs) if not left_out]
    if task.learns_by_patient:
        used = list({rows[number].patient_id: number for number in used}.values())
    return task.find_training_problems(targets[used])


def _label_rows(
    where: object, rows: Sequence[TargetRow], task: Task, targets: npt.NDArray[np.float64]
) -> Iterator[LabeledSlide]:
    """Yield the slides that have a usable target; a warning gives the number of the others."""
    is_left_out: list[bool] = task.find_left_out(targets).tolist()
    if any(is_left_out):
        pairs = zip(rows, is_left_out, strict=True)
        locations = [row.location for row, left_out in pairs if left_out]
        verb = "is" if len(locations) == 1 else "are"
        message = f"{where}: {format_count(len(locations), 'row')} {task.left_out} {verb} left out"
        warnings.warn(f"{message}: {list_first(locations)}", CohortWarning, stacklevel=4)
    for row, values, left_out in zip(rows, targets.tolist(), is_left_out, strict=True):
        if not left_out:
            label: Label = int(values[0]) if task.levels else tuple(values)
            yield LabeledSlide(row.slide_id, row.patient_id, label, row.site)


def _find_disagreements(
    task: Task, rows: Sequence[TargetRow], targets: npt.NDArray[np.float64]
) -> list[str]:
    """Return a problem for each patient whose slides have different targets."""
    problems = []
    names = task.source_columns if task.levels else task.target_columns
    by_patient = _group((row.patient_id, number) for number, row in enumerate(rows))
    for patient, numbers in by_patient.items():
        for column, values in zip(names, targets[numbers].T, strict=True):
            found = values[~np.isnan(values)]
            if len(found) and (found != found[0]).any():
                where = list_first([rows[number].location for number in numbers])
                problems.append(
                    f"patient {patient!r} has slides with different values of {column} ({where}); "
                    "expected one value for all slides of a patient"
                )
    return problems


def find_class_problems(cohort: Cohort, min_patients: int = 2) -> list[str]:
    """Return problems that prevent training: a single class, classes of too few patients."""
    if min_patients < 1:
        return []
    if not cohort.task.has_classes:
        return cohort.task.find_training_problems(cohort.learned_targets)
    if len(cohort.classes) < 2:
        found = ", ".join(cohort.classes) or "none"
        return [f"fewer than two classes, found {found}; check the label column"]
    counts = zip(cohort.classes, cohort.patients_per_class, strict=True)
    few = [(name, count) for name, count in counts if count < min_patients]
    if len(few) > _MAX_SMALL_CLASSES:
        return [
            f"{len(few)} of {len(cohort.classes)} labels have fewer than "
            f"{format_count(min_patients, 'patient')}; "
            "expected a column of a few classes, name it by `label`"
        ]
    return [
        f"class {name!r} has {format_count(count, 'patient')}; expected at least "
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
    empty = []
    for column, what in enumerate(("slide id", "patient", "label"), start=1):
        found = [row.location for row in rows if not row[column]]
        if len(found) == len(rows) > 1:
            empty.append(f"the {what} is empty in every row; expected another column, name it")
        else:
            empty += [f"{location}: the {what} is empty" for location in found]
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
