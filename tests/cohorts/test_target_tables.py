"""Tables of numbers, levels and labels become cohorts, or one list of what is wrong."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from target_cohort import OTHERS, TASKS, draw_targets, make_cohort

from sacmil.cohorts.bags import BagIndex
from sacmil.cohorts.cohort import Cohort, read_cohort, write_cohort
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.split_cohort import split_cohort
from sacmil.cohorts.splits import make_folds
from sacmil.errors import CohortError, CohortWarning, OptionError
from sacmil.tasks import Classification, MultiLabel, Ordinal, Regression

HEADER = "slide,patient,ki67,er,grade"
FINE = ("a,1,1.5,1,low", "b,2,-2e3,0,high", "c,3,+4,,mid")
LEVELS = ("low", "mid", "high")
KINDS: dict[str, dict[str, Any]] = {
    "regression": {"targets": "ki67"},
    "ordinal": {"order": LEVELS, "label": "grade"},
    "multilabel": {"labels": ["er"]},
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def write(folder: Path, *lines: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_rows(folder: Path, *rows: tuple[object, ...]) -> Path:
    path = folder / "table.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def problems(path: Path, **options: Any) -> list[str]:
    with pytest.raises(CohortError) as raised:
        read_cohort(path, **options)
    assert str(path) in str(raised.value)
    return raised.value.problems


def targets(cohort: Cohort) -> list[Any]:
    return [slide.label for slide in cohort.slides]


@pytest.mark.filterwarnings("ignore:.*without a target:sacmil.errors.CohortWarning")
def test_a_table_is_read_for_each_kind(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, *FINE)
    numbers = read_cohort(path, **KINDS["regression"])
    assert numbers.task == Regression("ki67")
    assert targets(numbers) == [(1.5,), (-2000.0,), (4.0,)]
    assert numbers.classes == ()
    levels = read_cohort(path, **KINDS["ordinal"])
    assert levels.task == Ordinal(LEVELS, "grade")
    assert (targets(levels), levels.classes) == ([0, 2, 1], LEVELS)
    labels = read_cohort(path, **KINDS["multilabel"])
    assert labels.task == MultiLabel(("er",))
    assert targets(labels) == [(1.0,), (0.0,)]


def test_a_task_is_given_in_four_ways(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, *FINE)
    wanted = read_cohort(path, task=Regression("ki67", "mse"))
    assert read_cohort(path, task="regression", targets="ki67", loss="mse") == wanted
    assert read_cohort(path, targets=["ki67"], loss="mse") == wanted
    for card in (
        {"kind": "regression", "targets": "ki67", "loss": "mse"},
        {"targets": "ki67", "loss": "mse"},
    ):
        assert read_cohort(path, task=card) == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"targets": "ki67", "order": LEVELS},
            "`targets` is a setting of the task regression and `order` of the task ordinal; leave",
        ),
        ({"targets": "ki67", "losss": "mse"}, "no setting 'losss' of the task regression"),
        (
            {"task": "ordinal", "labels": ["er"]},
            "`labels` is a setting of the task multilabel, not of the task ordinal; leave one out",
        ),
        (
            {"task": "survival", "targets": "ki67"},
            "`targets` is a setting of the task regression, not of the task survival",
        ),
        (
            {"unit": "days"},
            "but the task is classes; only the task survival has it: expected `task",
        ),
        (
            {"task": "survival", "label": "grade"},
            "task survival reads time and event; leave it out",
        ),
        ({"task": "regresion", "targets": "ki67"}, "did you mean 'regression'"),
        ({"task": "regression"}, "`targets` is missing; expected it for the task regression"),
        ({"task": 5}, "`task` is 5; expected a task such as"),
        (
            {"task": Regression("ki67"), "loss": "mse"},
            "`loss` is given, but the task is regression",
        ),
        ({"loss": "mse"}, "`loss` is given, but the task is classes"),
        ({"targets": "ki67", "label": "grade"}, "but the task regression reads ki67"),
        ({"targets": "ki67", "classes": ["a", "b"]}, "`classes` and `targets` are both given"),
        (
            {"task": Regression("ki67"), "classes": ["a", "b"]},
            "`classes` and `task` are both given",
        ),
    ],
)
def test_what_contradicts_itself_is_never_ignored(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        read_cohort(write(tmp_path, HEADER, *FINE), **options)


def test_classes_given_as_a_task_keep_their_order(tmp_path: Path) -> None:
    path = write(tmp_path, "slide,patient,label", "a,1,x", "b,2,y", "c,3,x", "d,4,y")
    wanted = read_cohort(path, classes=("y", "x"))
    assert wanted.classes == ("y", "x")
    assert read_cohort(path, task=Classification(("y", "x"))) == wanted
    assert read_cohort(path, task={"kind": "classification", "classes": ["y", "x"]}) == wanted
    assert read_cohort(path, task="classification", classes=("y", "x")) == wanted


# --- cells ---------------------------------------------------------------------------------------


def test_every_wrong_number_is_listed_with_its_line(tmp_path: Path) -> None:
    cells = [
        "1",
        "",
        "x",
        "inf",
        "nan",
        "-inf",
        "x",
        "1e400",
        "1e31",
        "0x10",
        "True",
        "1_000",
        "5 %",
    ]
    rows = [f"s{number},{number},{cell}" for number, cell in enumerate(cells)]
    found = problems(write(tmp_path, "slide,patient,ki67", *rows), targets="ki67")
    assert found[0] == "ki67 is empty in line 3, line 6; expected a number, or leave out the rows"
    wrong = {"x": "4, line 8", "inf": 5, "-inf": 7, "1e400": 9, "1e31": 10, "0x10": 11}
    wrong |= {"True": 12, "1_000": 13, "5 %": 14}
    assert found[1:] == [
        f"ki67 is {text!r} in line {line}; expected a number, at most 1e+30"
        for text, line in wrong.items()
    ]


def test_decimal_commas_are_one_problem(tmp_path: Path) -> None:
    rows = [f"s{number};{number};{number},5" for number in range(7)]
    found = problems(write(tmp_path, "slide;patient;ki67", *rows, "s7;7;x"), targets="ki67")
    assert found == [
        "ki67 has a decimal comma in line 2, line 3, line 4, line 5, line 6 and 2 more, such as "
        "'0,5'; use a decimal point",
        "ki67 is 'x' in line 9; expected a number, at most 1e+30",
    ]


def test_every_wrong_level_is_listed_with_its_line(tmp_path: Path) -> None:
    cells = ["low", "hihg", "", "mid", "Low", "7", "hihg"]
    rows = [f"s{number},{number},{cell}" for number, cell in enumerate(cells)]
    path = write(tmp_path, "slide,patient,grade", *rows)
    assert problems(path, **KINDS["ordinal"]) == [
        "grade is empty in line 4; expected low or mid or high, or leave out the rows",
        "grade is 'hihg' in line 3, line 8; did you mean 'high'?",
        "grade is 'Low' in line 6; did you mean 'low'?",
        "grade is '7' in line 7; known are: high, low, mid",
    ]


def test_every_wrong_label_is_listed_with_its_line(tmp_path: Path) -> None:
    rows = ["a,1,1,no", "b,2,0,maybe", "c,3,2,yes", "d,4,0.5,", "e,5,,2"]
    path = write(tmp_path, "slide,patient,er,pr", *rows)
    assert problems(path, labels=("er", "pr")) == [
        "er is '2' in line 4; expected 1, 0 or nothing",
        "er is '0.5' in line 5; expected 1, 0 or nothing",
        "pr is 'maybe' in line 3; expected 1, 0 or nothing",
        "pr is '2' in line 6; expected 1, 0 or nothing",
    ]


def test_labels_are_written_in_many_ways(tmp_path: Path) -> None:
    ways = {1.0: "1 1.0 yes Y TRUE positive Pos + present", 0.0: "0 0.0 no N False negative neg -"}
    for value, words in ways.items():
        other = "0" if value else "1"
        rows = [f"s{number},{number},{word}" for number, word in enumerate(words.split())]
        path = write(tmp_path, "slide,patient,er", *rows, f"last,last,{other}")
        assert targets(read_cohort(path, labels="er"))[:-1] == [(value,)] * len(rows)


def test_problems_of_slides_patients_and_targets_are_one_list(tmp_path: Path) -> None:
    rows = ("a,1,x,1,low", "a,2,3,0,mid", ",3,4,1,low", "d,,5,1,low")
    found = problems(write(tmp_path, HEADER, *rows), targets="ki67")
    assert found == [
        "line 4: the slide id is empty",
        "line 5: the patient is empty",
        "slide 'a' occurs 2 times (line 2, line 3); keep one row",
        "ki67 is 'x' in line 2; expected a number, at most 1e+30",
    ]


@every_kind
def test_a_target_of_one_value_cannot_be_learned_but_predicted(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, HEADER, "a,1,5,1,low", "b,2,5,1,low")
    (found,) = problems(path, **KINDS[kind])
    assert "in every row; expected different" in found
    assert len(read_cohort(path, **KINDS[kind], min_patients=0)) == 2
    single = write(tmp_path, HEADER, "a,1,5,1,low", name="single.csv")
    assert len(read_cohort(single, **KINDS[kind], min_patients=0)) == 1


@pytest.mark.filterwarnings("ignore:.*is nowhere 'high':sacmil.errors.CohortWarning")
def test_slides_without_a_bag_may_leave_one_value(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, "a,1,5,1,low", "b,2,5,1,low", "c,3,6,0,mid")
    bags = BagIndex.from_paths({"a": tmp_path / "a.h5", "b": tmp_path / "b.h5"})
    for options in KINDS.values():
        cohort = read_cohort(path, **options)
        with pytest.raises(CohortError, match="in every row"):
            Dataset(cohort, bags, drop_missing=True, check_headers=False)


def test_a_label_without_any_value_cannot_be_learned(tmp_path: Path) -> None:
    path = write(tmp_path, "slide,patient,er,pr", "a,1,1,", "b,2,0,NA")
    assert problems(path, labels=("er", "pr")) == [
        "pr is empty or unknown in every row; expected different values"
    ]


def test_rows_without_any_label_are_left_out_with_a_warning(tmp_path: Path) -> None:
    rows = ["a,1,1,", "b,2,,", "c,3,0,1", "d,4,unknown,NA", "e,5,,0"]
    path = write(tmp_path, "slide,patient,er,pr", *rows)
    with pytest.warns(CohortWarning, match=r"2 rows .* are left out: line 3, line 5$"):
        cohort = read_cohort(path, labels=("er", "pr"))
    assert [slide.slide_id for slide in cohort.slides] == ["a", "c", "e"]
    np.testing.assert_array_equal(cohort.targets, [[1, np.nan], [0, 1], [np.nan, 0]])


@every_kind
def test_slides_of_a_patient_must_agree(tmp_path: Path, kind: str) -> None:
    name = {"regression": "ki67", "ordinal": "grade", "multilabel": "er"}[kind]
    rows = ("a,1,5,1,low", "b,2,6,0,mid", "c,1,6,0,high")
    assert problems(write(tmp_path, HEADER, *rows), **KINDS[kind]) == [
        f"patient '1' has slides with different values of {name} (line 2, line 4); expected one "
        "value for all slides of a patient"
    ]


def test_a_label_known_of_one_slide_only_is_no_disagreement(tmp_path: Path) -> None:
    path = write(tmp_path, "slide,patient,er,pr", "a,1,1,", "b,1,,0", "c,2,0,1")
    assert len(read_cohort(path, labels=("er", "pr"))) == 3


def test_all_missing_columns_are_named(tmp_path: Path) -> None:
    found = problems(write(tmp_path, HEADER, *FINE), labels=("er", "pr", "gread"))
    assert [text.split(";")[0] for text in found] == [
        "there is no column 'pr' for the target",
        "there is no column 'gread' for the target",
    ]
    assert "did you mean 'grade'?" in found[1]


def test_a_column_that_is_there_twice_is_rejected(tmp_path: Path) -> None:
    path = write(tmp_path, "slide,patient,er,er", "a,1,1,0", "b,2,0,1")
    assert problems(path, labels="er") == ["two columns are called 'er'; rename one"]


def test_columns_are_found_in_any_case(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER.upper(), *FINE)
    assert targets(read_cohort(path, targets="Ki67")) == [(1.5,), (-2000.0,), (4.0,)]


@pytest.mark.parametrize("column", ["fold", "model", "slide_id", "patient_id", "split", "seed"])
def test_a_target_named_like_a_column_of_the_predictions_is_rejected(
    tmp_path: Path, column: str
) -> None:
    path = write(tmp_path, f"wsi,case_id,{column}", "a,1,5", "b,2,6")
    with pytest.raises(OptionError, match=f"has {column!r}.*rename the column in your table"):
        read_cohort(path, targets=column)
    assert targets(read_cohort(path, order=("5", "6"), label=column)) == [0, 1], (
        "it is called label"
    )


# --- levels --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*is nowhere:sacmil.errors.CohortWarning")
def test_the_column_of_levels_is_found_or_named(tmp_path: Path) -> None:
    path = write(tmp_path, "slide,patient,grade,category", "a,1,high,low", "b,2,low,mid")
    assert targets(read_cohort(path, order=LEVELS)) == [0, 1]
    assert targets(read_cohort(path, order=LEVELS, label="grade")) == [2, 0]
    assert targets(read_cohort(path, task=Ordinal(LEVELS, "grade"))) == [2, 0]
    known = Ordinal(LEVELS, "isup")
    assert targets(read_cohort(path, task=known, label="grade")) == [2, 0], "of another hospital"


@pytest.mark.parametrize("order", [("1", "2", "10"), (1, 2, 10), ("1.0", "2.0", "10.0")])
def test_levels_that_are_numbers_may_be_spelled_as_pandas_does(
    tmp_path: Path, order: tuple[Any, ...]
) -> None:
    for cells in (("1", "10", "2"), ("1.0", "10.0", "2.0")):
        rows = [f"s{number},{number},{cell}" for number, cell in enumerate(cells)]
        path = write(tmp_path, "slide,patient,label", *rows)
        assert targets(read_cohort(path, order=order)) == [0, 2, 1]
    wrong = write(tmp_path, "slide,patient,label", "a,1,1", "b,2,1.5", "c,3,nan")
    assert len(problems(wrong, order=order)) == 2


def test_a_level_without_a_slide_is_a_warning(tmp_path: Path) -> None:
    path = write(tmp_path, "slide,patient,label", "a,1,low", "b,2,high")
    with pytest.warns(CohortWarning, match="label is nowhere 'mid', so no model can learn it"):
        cohort = read_cohort(path, order=LEVELS)
    assert cohort.classes == LEVELS
    assert cohort.patients_per_class == (1, 0, 1)
    assert read_cohort(path, order=LEVELS, min_patients=0) == cohort, "for testing it is enough"


def test_a_level_that_only_a_test_set_has_is_an_error() -> None:
    cohort = make_cohort(TASKS["corn"], np.array([[0.0], [1], [2], [0], [1]]))
    with pytest.raises(CohortError, match=r"fold \d: no slide of level 'high' is in the training"):
        make_folds(cohort, 2, validation=0)


def test_a_finding_that_only_a_test_set_has_is_a_warning() -> None:
    targets = np.array([[0, 1, 1.0], [1, 0, 0], [0, 1, 0], [1, 0, 0]])
    cohort = make_cohort(TASKS["multilabel"], targets)
    with pytest.warns(CohortWarning, match=r"fold \d: no slide with her2 is in the training set"):
        make_folds(cohort, 2, validation=0)


def test_each_finding_is_spread_evenly_over_the_folds() -> None:
    both, with_rare = [1.0, 1, 0], [1.0, 0, 1]  # two findings each
    targets = np.random.default_rng(0).permutation(
        [both] * 40 + [with_rare] * 10 + [[0, 0, 0]] * 10
    )
    cohort = make_cohort(TASKS["multilabel"], targets)
    present = [
        sum(slide.targets[2] for slide in cohort.get_slides(fold.test))
        for fold in make_folds(cohort, 5)
    ]
    assert max(present) - min(present) <= 1


def test_a_column_without_any_entry_is_one_problem(tmp_path: Path) -> None:
    rows = [f"s{n},{n},," for n in range(4)]
    path = write(tmp_path, "slide,patient,label,ki67", *rows)
    assert problems(path, targets="ki67") == [
        "ki67 is empty in every row; expected a number, or leave out the rows"
    ]
    assert problems(path, order=LEVELS)[0].startswith("label is empty in every row; expected low")
    assert problems(path)[0].startswith("the label is empty in every row; expected")
    assert len(problems(path)) == 2


# --- two tables ----------------------------------------------------------------------------------

CLINICAL = ("PATIENT,KI67,ER,GRADE", "p1,5,1,low", "p2,6,,high", "p3,7,0,mid")
SLIDES = ("FILENAME,PATIENT", "a.h5,p1", "b.h5,p2", "c.h5,p1", "d.h5,p3")


@every_kind
def test_stamps_two_tables_are_one_cohort(tmp_path: Path, kind: str) -> None:
    path, slides = write(tmp_path, *CLINICAL), write(tmp_path, *SLIDES, name="slides.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CohortWarning)
        cohort = read_cohort(path, slide_table=slides, **KINDS[kind])
    found = {slide.slide_id: slide.label for slide in cohort.slides}
    assert (
        found
        == {
            "regression": {"a": (5,), "b": (6,), "c": (5,), "d": (7,)},
            "ordinal": {"a": 0, "b": 2, "c": 0, "d": 1},
            "multilabel": {"a": (1,), "c": (1,), "d": (0,)},
        }[kind]
    )
    assert list(cohort.patients) == (["p1", "p3"] if kind == "multilabel" else ["p1", "p2", "p3"])


def test_a_wrong_cell_is_in_the_table_of_patients_and_named_once(tmp_path: Path) -> None:
    path = write(tmp_path, CLINICAL[0], "p1,x,1,lo", "p2,,0,high", "p3,7,7,mid")
    slides = write(tmp_path, *SLIDES, name="slides.csv")
    where = {
        "regression": "'x' in line 2",
        "ordinal": "'lo' in line 2",
        "multilabel": "'7' in line 4",
    }
    for kind, options in KINDS.items():
        found = problems(path, slide_table=slides, **options)
        assert any(f"is {where[kind]} of table.csv; " in text for text in found), found
    assert "is empty in line 3 of table.csv; " in problems(
        path, slide_table=slides, targets="ki67"
    )[0].replace("KI67", "ki67")


@every_kind
def test_a_table_of_slides_without_rows_is_a_problem(tmp_path: Path, kind: str) -> None:
    path, slides = write(tmp_path, *CLINICAL), write(tmp_path, SLIDES[0], name="slides.csv")
    with pytest.warns(CohortWarning, match="3 patients without a slide"):
        assert problems(path, slide_table=slides, **KINDS[kind])


def test_a_patient_in_two_rows_is_rejected(tmp_path: Path) -> None:
    path = write(tmp_path, *CLINICAL, "p1,9,0,low")
    slides = write(tmp_path, *SLIDES, name="slides.csv")
    found = problems(path, slide_table=slides, targets="KI67")
    assert found == ["patient 'p1' occurs in several rows (line 2, line 5); keep one"]


# --- tables that are written ---------------------------------------------------------------------

ODD = ("=1+1", "größe µm", "Ki67, %", 'say "x"', "@SUM", "-a", "two\nlines", "<b>&amp;", "p_x")


@pytest.mark.parametrize("name", OTHERS)
def test_a_table_that_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    task = TASKS[name]
    cohort = make_cohort(task, draw_targets(task, 12, np.random.default_rng(0)), slides=2)
    write_cohort(tmp_path / "table.csv", cohort)
    again = read_cohort(tmp_path / "table.csv", task=task)
    assert repr(again) == repr(cohort)
    assert again.sha256 == cohort.sha256


@pytest.mark.parametrize("name", ODD)
def test_odd_names_of_columns_and_huge_values_are_read_again(tmp_path: Path, name: str) -> None:
    numbers = [1e12 + 0.25, -1e12, 1e-12]
    rows = [("slide", "patient", name), *((f"s{n}", n, v) for n, v in enumerate(numbers))]
    for task in (Regression(name), Regression((name, "other"))):
        listed = [(*row, "other" if row[0] == "slide" else len(row[0]) + row[1]) for row in rows]
        cohort = read_cohort(write_rows(tmp_path, *listed), task=task)
        assert cohort.targets[:, 0].tolist() == numbers
        write_cohort(tmp_path / "again.csv", cohort)
        assert read_cohort(tmp_path / "again.csv", task=task) == cohort


few = settings(
    deadline=None,
    max_examples=40,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
size = st.floats(-1e30, 1e30)


@few
@given(
    st.lists(
        st.tuples(size, size), min_size=2, max_size=6, unique_by=(lambda r: r[0], lambda r: r[1])
    )
)
def test_any_numbers_are_read_again_to_the_last_bit(
    tmp_path: Path, rows: list[tuple[float, float]]
) -> None:
    task = Regression(("a", "b"))
    cohort = make_cohort(task, np.array(rows))
    write_cohort(tmp_path / "table.csv", cohort)
    assert read_cohort(tmp_path / "table.csv", task=task, min_patients=0) == cohort


# --- what else there is of a cohort --------------------------------------------------------------


def test_the_hash_knows_the_column_and_the_kind(tmp_path: Path) -> None:
    rows = ("a,1,1,0,1", "b,2,0,1,0", "c,3,1,1,0")
    path = write(tmp_path, "slide,patient,er,pr,label", *rows)
    cohorts = [
        read_cohort(path, targets="er"),
        read_cohort(path, targets="label"),
        read_cohort(path, labels="er"),
        read_cohort(path, labels="pr"),
        read_cohort(path, labels=("er", "pr")),
        read_cohort(path, order=("0", "1"), label="er"),
        read_cohort(path, order=("1", "0"), label="er"),
        read_cohort(path, order=("0", "1"), label="label"),
        read_cohort(path, min_patients=1),
    ]
    assert len({cohort.sha256 for cohort in cohorts}) == len(cohorts)
    turned = write(tmp_path, "slide,patient,er,pr,label", *rows[::-1], name="turned.csv")
    assert read_cohort(turned, targets="er").sha256 == cohorts[0].sha256


@pytest.mark.parametrize("name", OTHERS)
def test_folds_keep_patients_together_and_are_alike_in_their_targets(name: str) -> None:
    task = TASKS[name]
    cohort = make_cohort(task, draw_targets(task, 60, np.random.default_rng(0)), slides=2)
    folds = make_folds(cohort, 3)
    strata = cohort.strata
    assert sorted(slide for fold in folds for slide in fold.test) == sorted(cohort.by_id)
    counts = []
    for fold in folds:
        train, val, test = ({cohort.by_id[s].patient_id for s in part} for part in fold)
        assert not train & val
        assert not (train | val) & test
        counts.append(np.bincount([strata[patient] for patient in test], minlength=12))
    assert np.ptp(counts, axis=0).max() <= 1, "each group is spread evenly"
    if task.kind == "regression":
        means = [np.mean([cohort.by_id[s].targets[0] for s in fold.test]) for fold in folds]
        assert np.ptp(means) < 2, "of a deviation of 5"


@pytest.mark.parametrize("name", OTHERS)
def test_split_counts_and_writes_any_target(tmp_path: Path, name: str) -> None:
    task = TASKS[name]
    cohort = make_cohort(task, draw_targets(task, 20, np.random.default_rng(0)))
    made = split_cohort(cohort, 4, out=tmp_path, with_table=True)
    assert all(count.patients for count in made.count_sets() if count.name == "test")
    again = split_cohort(read_cohort(tmp_path / "table.csv", task=task), tmp_path)
    assert [fold.test for fold in again.folds] == [fold.test for fold in made.folds]
    with pytest.raises(CohortError, match="20 patients are too few for 21 folds"):
        make_folds(cohort, 21)
