"""Folds are made or checked, counted, and go to disk and come back, ours and those of others."""

from __future__ import annotations

import csv
import io
import json
from itertools import zip_longest
from pathlib import Path

import pytest
from small_cohort import Material, write_material

from sacmil.cohorts.cohort import Cohort, LabeledSlide, read_cohort
from sacmil.cohorts.split_cohort import read_splits, split_cohort, write_splits
from sacmil.cohorts.splits import Fold, make_folds
from sacmil.csv_text import escape_cells
from sacmil.errors import CohortError, CohortWarning


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return write_material(tmp_path_factory.mktemp("bags"), patients=8)


def test_a_dataset_or_its_cohort_is_split_into_the_same_files(
    tmp_path: Path, material: Material
) -> None:
    one = split_cohort(material.data, 2, out=tmp_path / "one", with_table=True)
    two = split_cohort(material.cohort, 2, out=tmp_path / "two", seed=1)
    assert one.folds == make_folds(material.cohort, 2) == make_folds(material.data, 2)
    assert one.folds != two.folds
    assert [file.name for file in one.files] == ["splits_0.csv", "splits_1.csv", "splits.json"]
    cohort = read_cohort(tmp_path / "one" / "table.csv")
    assert read_splits(tmp_path / "one", cohort) == one.folds
    checked = split_cohort(material.cohort, tmp_path / "two")
    assert (checked.folds, checked.files) == (two.folds, ())


def test_every_slide_is_counted_once_per_fold(material: Material) -> None:
    counts = split_cohort(material.cohort, 2).count_sets()
    assert [(count.fold, count.name) for count in counts[:3]] == [
        (0, "train"),
        (0, "val"),
        (0, "test"),
    ]
    for fold in (0, 1):
        of_fold = [count for count in counts if count.fold == fold]
        assert sum(count.slides for count in of_fold) == len(material.cohort)
        assert all(sum(count.slides_by_class) == count.slides for count in of_fold)


def test_given_folds_must_have_slides_of_the_cohort(material: Material) -> None:
    with pytest.raises(CohortError, match="'zebra' is not in the cohort"):
        split_cohort(material.cohort, [Fold(("zebra",), (), ())])


def test_given_folds_are_checked_as_if_they_had_been_read(material: Material) -> None:
    names = [slide.slide_id for slide in material.cohort.slides]
    first, *rest = names
    for fold, message in (
        (Fold(tuple(names), (), (first,)), "listed more than once"),
        (Fold(tuple(rest), (), ()), "the test set is empty"),
        (Fold((), (), tuple(names)), "the training set is empty"),
        (Fold((first,), (), tuple(rest)), "no slide of class"),
    ):
        with pytest.raises(CohortError, match=message):
            split_cohort(material.cohort, [fold])


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def cohort() -> Cohort:
    """Twenty patients of two slides; ids that pandas would take for numbers."""
    slides = [
        LabeledSlide(f"{2 * patient + number:04}", f"0{patient}", patient % 2)
        for patient in range(20)
        for number in range(2)
    ]
    return Cohort(tuple(slides), ("a", "b"))


def test_written_splits_read_back_as_they_were(tmp_path: Path, cohort: Cohort) -> None:
    folds = make_folds(cohort, 5, repeats=3)
    files = write_splits(tmp_path, folds, cohort)
    assert [file.name for file in files[:2]] == ["splits_0.csv", "splits_1.csv"]
    assert read_splits(tmp_path, cohort) == folds  # splits_10 comes after splits_9


def test_the_file_is_clams(tmp_path: Path) -> None:
    write_splits(tmp_path, [Fold(("a", "b", "c"), ("d",), ("e", "f"))])
    expected = ",train,val,test\n0,a,d,e\n1,b,,f\n2,c,,\n"
    assert (tmp_path / "splits_0.csv").read_text() == expected
    assert not (tmp_path / "splits.json").exists()


def test_stamps_file_is_of_patients_with_validation_among_those_trained_on(
    tmp_path: Path, cohort: Cohort
) -> None:
    folds = make_folds(cohort, 2)
    write_splits(tmp_path, folds, cohort)
    splits = json.loads((tmp_path / "splits.json").read_text())["splits"]
    for fold, split in zip(folds, splits, strict=True):
        assert set(split["test_patients"]) == {s.patient_id for s in cohort.get_slides(fold.test)}
        assert len(split["train_patients"]) + len(split["test_patients"]) == 20
    back = read_splits(tmp_path / "splits.json", cohort, seed=1)
    assert [sorted(fold.test) for fold in back] == [list(fold.test) for fold in folds]
    assert all(fold.val for fold in back)
    assert back == read_splits(tmp_path / "splits.json", cohort, seed=1)
    assert back != read_splits(tmp_path / "splits.json", cohort, seed=2)


def test_stamps_file_is_not_written_if_a_patient_is_on_both_sides(
    tmp_path: Path, cohort: Cohort
) -> None:
    write_splits(tmp_path, [Fold(("0000", "0002"), (), ("0001", "0003"))], cohort)
    assert [file.name for file in tmp_path.iterdir()] == ["splits_0.csv"]


def test_other_splits_are_not_overwritten_unasked(tmp_path: Path, cohort: Cohort) -> None:
    five, two = make_folds(cohort, 5), make_folds(cohort, 2)
    write_splits(tmp_path, five, cohort)
    (tmp_path / "notes.csv").write_text("mine")
    before = {
        file: file.stat().st_mtime_ns for file in tmp_path.iterdir() if file.name == "notes.csv"
    }
    write_splits(tmp_path, five, cohort)
    with pytest.raises(CohortError, match="`overwrite`"):
        write_splits(tmp_path, two, cohort)
    assert read_splits(tmp_path, cohort) == five
    write_splits(tmp_path, two, cohort, overwrite=True)
    assert read_splits(tmp_path, cohort) == two
    assert {file: file.stat().st_mtime_ns for file in before} == before


@pytest.mark.parametrize(
    "text",
    [
        ",train,val,test\n0,0000,0008,0004\n1,0002,0010,0006\n",
        "train,val,test\n0000,0008,0004\n0002,0010,0006\n",
        ",train,val,test\n0,0.0,8.0,4\n1,2.0,10.0,6\n",
        ",train,val,test\n0,x/0000.svs,0008.h5,0004.pt\n1,0002.svs,0010.svs,0006.tif\n",
        ",train,train_label,val,val_label,test,test_label\n0,0000,0,0008,0.0,0004,0.0\n"
        "1,0002,1,0010,1.0,0006,1.0\n",
        "bag_name,split\n0000,train\n0002,train\n0008,val\n0010,valid\n0004,test\n0006,TEST\n0012,\n",
        "case_id\tslide_id\tlabel\tfold_0\n00\t0000\ta\ttrain\n01\t0002\tb\ttrain\n"
        "04\t0008\ta\tval\n05\t0010\tb\tval\n02\t0004\ta\ttest\n03\t0006\tb\ttest\n",
    ],
    ids=["clam", "no-index", "pandas", "suffixes", "transmil", "torchmil", "patho-bench"],
)
def test_every_layout_says_the_same(tmp_path: Path, cohort: Cohort, text: str) -> None:
    path = tmp_path / "splits.csv"
    path.write_text(text)
    (fold,) = read_splits(path, cohort)
    assert fold == Fold(("0000", "0002"), ("0008", "0010"), ("0004", "0006"))
    assert read_splits(tmp_path, cohort) == [fold]


def test_patho_bench_has_a_column_per_fold_and_may_name_cases_only(
    tmp_path: Path, cohort: Cohort
) -> None:
    rows = ["case_id\tfold_0\tfold_10\tfold_2"]
    for patient in range(20):
        parts = ["test" if patient // 2 % 3 == fold else "train" for fold in (0, 2, 1)]
        rows.append("\t".join([f"0{patient}", *parts]))
    (tmp_path / "k=all.tsv").write_text("\n".join(rows))
    folds = read_splits(tmp_path, cohort)
    assert ["0000" in fold.test for fold in folds] == [True, False, False]
    assert ["0004" in fold.test for fold in folds] == [False, True, False]  # 2 before 10
    assert all("0001" in fold.test for fold in folds if "0000" in fold.test)
    assert all(fold.val for fold in folds)


def test_an_empty_validation_column_stays_empty(tmp_path: Path, cohort: Cohort) -> None:
    folds = make_folds(cohort, 4, validation=0)
    write_splits(tmp_path, folds)
    assert read_splits(tmp_path, cohort) == folds


def test_clams_repeated_draws_and_shared_patients_are_reported(
    tmp_path: Path, cohort: Cohort
) -> None:
    drawn = Fold(("0000", "0002", "0004"), (), ("0001", "0006"))
    write_splits(tmp_path, [drawn, drawn])
    with pytest.warns(CohortWarning) as found:
        read_splits(tmp_path, cohort)
    message = "\n".join(str(warning.message) for warning in found)
    assert "1 patient is in the test set and in training or validation" in message
    assert "2 slides are in the test sets of several folds" in message
    assert "38 of 40 slides are in no test set" in message


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("splits_0.csv", ",train,val,test\n0,0000,0002,nobody\n", "'nobody' is not in the cohort"),
        ("splits_0.csv", "a,b\n1,2\n", "expected train, val, test"),
        ("splits_0.csv", "", "is empty"),
        ("splits.csv", "bag_name,split\n0000,left\n", "line 2: split is 'left'"),
        ("splits.csv", "thing,split\n0000,train\n", "no column of slides"),
        ("splits.json", "{", "STAMP's splits"),
        ("splits.json", "[]", "STAMP's splits"),
        ("splits.json", '{"splits": []}', "there are no folds"),
        ("splits.json", '{"splits": [{"train_patients": ["00", "01"]}]}', "test_patients"),
        ("splits.json", '{"splits": [{"train_patients": "00", "test_patients": []}]}', "a text"),
        (
            "splits.json",
            '{"splits": [{"train_patients": ["00", "x"], "test_patients": ["01"]}]}',
            "'x' is not in the cohort",
        ),
        ("splits.json", "[" * 100_000, "STAMP's splits"),
    ],
)
def test_splits_that_cannot_be_understood_are_rejected(
    tmp_path: Path, cohort: Cohort, name: str, text: str, expected: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CohortError, match=expected):
        read_splits(tmp_path, cohort)


def test_a_folder_without_splits_says_what_was_expected(tmp_path: Path, cohort: Cohort) -> None:
    (tmp_path / "splits_0_bool.csv").write_text(",train,val,test\n")
    with pytest.raises(CohortError, match=r"expected splits_0\.csv"):
        read_splits(tmp_path, cohort)
    with pytest.raises(CohortError, match="no such file or folder"):
        read_splits(tmp_path / "nowhere", cohort)


def test_an_id_of_thousands_of_digits_is_a_name_like_others(tmp_path: Path, cohort: Cohort) -> None:
    (tmp_path / "splits_0.csv").write_text(f",train,val,test\n0,{'9' * 5000},,\n")
    with pytest.raises(CohortError, match="99999"):
        read_splits(tmp_path, cohort)


@pytest.mark.parametrize("name", ["plain", "a,b", 'a"b', "a\nb", "a\rb", "=1+1", "'=1", "ü"])
def test_files_are_those_that_csv_and_json_write(tmp_path: Path, name: str) -> None:
    slides = [LabeledSlide(f"{name}{i}", f"{name}p{i}", i % 2) for i in range(8)]
    cohort = Cohort(tuple(slides), ("0", "1"))
    ids = [slide.slide_id for slide in slides]
    fold = Fold(tuple(ids[:5]), (), tuple(ids[5:]))
    write_splits(tmp_path, [fold, fold], cohort)
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["", "train", "val", "test"])
    for number, (train, test) in enumerate(zip_longest(fold.train, fold.test, fillvalue="")):
        writer.writerow([number, *escape_cells([train, "", test])])
    patients = [slide.patient_id for slide in slides]
    split = {"train_patients": patients[:5], "test_patients": patients[5:]}
    document = json.dumps({"splits": [split, split]}, indent=1, ensure_ascii=False) + "\n"
    assert (tmp_path / "splits_0.csv").read_bytes() == stream.getvalue().encode()
    assert (tmp_path / "splits.json").read_bytes() == document.encode()
