"""A run folder is read without torch, and what is no run is rejected."""

from __future__ import annotations

import gzip
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sacmil.errors import OptionError, RunError
from sacmil.results import (
    KEY_COLUMNS,
    LOCALIZATION_FILE,
    PREDICTIONS_FILE,
    Predictions,
    SlideLocalization,
    read_localization,
    read_predictions,
    write_localization,
    write_predictions,
)
from sacmil.results.run import Run

FILES = Path(__file__).parent.parent / "compat" / "files" / "0.1-dev-1"


def test_a_run_of_cross_validation_has_its_models_and_their_folders() -> None:
    run = Run(FILES / "run")
    assert run.models == ("abmil", "sac_mil")
    assert len(run.predictions) == len(read_predictions(FILES / "run"))
    names = [str(folder.relative_to(run.folder)) for folder in run.model_folders("abmil")]
    assert names == ["abmil/seed_0/fold_0", "abmil/seed_0/fold_1"]
    assert len(run.model_folders()) == 4
    assert run.failures == {}
    with pytest.raises(RunError, match="has no model 'abmill'; did you mean 'abmil'"):
        run.model_folders("abmill")


def test_a_run_of_training_is_its_own_model_folder() -> None:
    run = Run(FILES / "trained")
    assert run.models == ("sac_mil_twice",)
    assert run.model_folders() == run.model_folders("sac_mil_twice") == [FILES / "trained"]


def test_an_unfinished_run_has_only_the_folders_of_finished_jobs() -> None:
    run = Run(FILES / "interrupted")
    assert all((folder / "card.json").is_file() for folder in run.model_folders())
    assert run.has_predictions == (FILES / "interrupted/predictions.csv").is_file()


@pytest.mark.parametrize("name", ["bags", "models/abmil", "nowhere", "table.csv"])
def test_a_path_that_is_no_run_is_rejected(name: str) -> None:
    with pytest.raises(RunError, match="expected"):
        Run(FILES / name)


def test_a_frame_has_the_columns_of_the_predictions() -> None:
    frame = Run(FILES / "run").to_frame()
    header = (FILES / "run/predictions.csv").read_text().splitlines()[0]
    assert ",".join(frame.columns) == header
    assert set(frame["label"]) == {"high", "low"}


def test_a_run_needs_neither_torch_nor_pandas() -> None:
    code = (
        "import sys\nfrom sacmil.results.run import Run\n"
        f"Run({str(FILES / 'run')!r}).predictions\n"
        "assert not {'torch', 'pandas', 'h5py'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_is_made_from_a_run() -> None:
    run = Run(FILES / "run", {"abmil, seed 0, fold 0": "failed"})
    again = Run(run)
    assert (again, again.failures) == (run, run.failures)
    with pytest.raises(OptionError, match="`folder` is 5; expected the path of a run folder"):
        Run(5)


HEADER = "slide_id,patient_id,split,fold,seed,model,label,p_no,p_yes"
ROW = "s1,x,test,0,1,abmil,yes,0.25,0.75"
few = settings(
    deadline=None,
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
whole = st.integers(-(2**63), 2**63 - 1)


@st.composite
def tables(draw: st.DrawFn) -> Predictions:
    classes = draw(st.lists(names, min_size=2, max_size=4, unique=True))
    label = st.integers(0, len(classes) - 1)
    split = st.sampled_from(["train", "val", "test"])
    one = st.tuples(names, names, split, whole, whole, names, label)
    rows = draw(st.lists(one, max_size=6, unique_by=lambda row: row[0]))
    part = st.floats(0, 1, allow_subnormal=True)
    first = draw(st.lists(part, min_size=len(rows), max_size=len(rows)))
    others = [[(1 - p) / (len(classes) - 1)] * (len(classes) - 1) for p in first]
    return Predictions.from_rows(
        classes, rows, [[p, *rest] for p, rest in zip(first, others, strict=True)]
    )


def same(one: Predictions, other: Predictions) -> bool:
    columns = (*KEY_COLUMNS, "probabilities")
    equal = [np.array_equal(getattr(one, key), getattr(other, key)) for key in columns]
    return one.classes == other.classes and all(equal)


def written(folder: Path, *lines: str) -> Path:
    file = folder / PREDICTIONS_FILE
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@few
@given(tables())
def test_what_is_written_reads_back_to_the_last_bit(tmp_path: Path, table: Predictions) -> None:
    write_predictions(tmp_path / PREDICTIONS_FILE, table)
    assert same(read_predictions(tmp_path / PREDICTIONS_FILE), table)


@pytest.mark.parametrize(
    "name", ["007", "a,b", 'say "x"', "two\nlines", "=1+1", " spaced ", "p_no"]
)
def test_odd_names_stay_as_they_are(tmp_path: Path, name: str) -> None:
    table = Predictions.from_rows(["no", name], [(name, name, "test", 0, 0, name, 1)], [[0.5, 0.5]])
    write_predictions(tmp_path / PREDICTIONS_FILE, table)
    assert same(read_predictions(tmp_path), table)


@few
@given(tables())
def test_a_compressed_table_reads_back_to_the_last_bit(tmp_path: Path, table: Predictions) -> None:
    write_predictions(tmp_path / "colon.csv.gz", table)
    assert same(read_predictions(tmp_path / "colon.csv.gz"), table)


def test_a_compressed_table_has_the_same_bytes_for_the_same_rows(tmp_path: Path) -> None:
    table = read_predictions(FILES / "run")
    for name in ("one.csv", "one.csv.gz", "other.csv.gz"):
        write_predictions(tmp_path / name, table)
    packed = (tmp_path / "one.csv.gz").read_bytes()
    assert packed == (tmp_path / "other.csv.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "one.csv").read_bytes()


@pytest.mark.parametrize("damage", ["cut", "changed", "plain", "empty"])
def test_a_damaged_compressed_table_is_rejected(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "colon.csv.gz"
    write_predictions(file, read_predictions(FILES / "run"))
    whole = file.read_bytes()
    data = {
        "cut": whole[: len(whole) // 2],
        "changed": whole[:40] + bytes(40) + whole[80:],
        "plain": f"{HEADER}\n{ROW}\n".encode(),
        "empty": b"",
    }
    file.write_bytes(data[damage])
    words = "lacks slide_id" if damage == "empty" else "cannot be read as a table"
    with pytest.raises(RunError, match=rf"colon.csv.gz: {words}"):
        read_predictions(file)


def test_a_run_folder_is_read_by_its_table(tmp_path: Path) -> None:
    written(tmp_path, HEADER, ROW)
    found = read_predictions(tmp_path)
    assert found.classes == ("no", "yes")
    assert (found.slide_id[0], found.fold[0], found.seed[0], found.label[0]) == ("s1", 0, 1, 1)
    assert found.probabilities.tolist() == [[0.25, 0.75]]


def test_columns_may_stand_in_any_order_among_others(tmp_path: Path) -> None:
    turned = written(
        tmp_path,
        "p_yes,model,note,label,seed,fold,split,patient_id,slide_id,p_no",
        "0.75,abmil,hello,yes,1,0,test,x,s1,0.25",
    )
    found = read_predictions(turned)
    assert found.classes == ("yes", "no")
    assert (found.label[0], found.slide_id[0]) == (0, "s1")
    assert found.probabilities.tolist() == [[0.75, 0.25]]


def test_what_a_spreadsheet_adds_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / PREDICTIONS_FILE
    file.write_bytes(f"\ufeff{HEADER}\r\n{ROW}\r\n\r\n".encode())
    assert len(read_predictions(file)) == 1


def test_a_header_without_rows_is_an_empty_table(tmp_path: Path) -> None:
    found = read_predictions(written(tmp_path, HEADER))
    assert len(found) == 0
    assert found.probabilities.shape == (0, 2)


@pytest.mark.parametrize("key", KEY_COLUMNS)
def test_a_missing_column_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(RunError, match=rf"{PREDICTIONS_FILE}: lacks {key}; expected slide_id"):
        read_predictions(written(tmp_path, HEADER.replace(key, "other"), ROW))


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("", "lacks slide_id"),
        (HEADER.removesuffix(",p_no,p_yes"), "lacks p_<class> columns"),
        (HEADER.removesuffix(",p_yes"), "lacks p_<class> columns"),
        (HEADER + ",p_no", "columns twice: p_no"),
        (HEADER + ",fold", "columns twice: fold"),
    ],
)
def test_a_header_that_cannot_be_right_is_rejected(tmp_path: Path, header: str, words: str) -> None:
    with pytest.raises(RunError, match=words):
        read_predictions(written(tmp_path, header, ROW))


@pytest.mark.parametrize(
    "row",
    [
        "s1,x,test,0,1,abmil,yes,0.25",
        "s1",
        "s1,x,test,zero,1,abmil,yes,0.25,0.75",
        "s1,x,test,0,1.5,abmil,yes,0.25,0.75",
        f"s1,x,test,{10**30},1,abmil,yes,0.25,0.75",
        f"s1,x,test,{'9' * 5000},1,abmil,yes,0.25,0.75",
        "s1,x,test,0,1,abmil,maybe,0.25,0.75",
        "s1,x,test,0,1,abmil,1,0.25,0.75",
        "s1,x,test,0,1,abmil,yes,a,b",
        "s1,x,test,0,1,abmil,yes,,",
        "s1,x,test,0,1,abmil,yes,0.25,0.7",
        "s1,x,test,0,1,abmil,yes,-0.25,1.25",
        "s1,x,test,0,1,abmil,yes,nan,nan",
        "s1,x,test,0,1,abmil,yes,inf,-inf",
        "s1,x,test,0,1,abmil,yes,1e400,0",
    ],
)
def test_a_row_that_cannot_be_right_is_rejected_by_its_line(tmp_path: Path, row: str) -> None:
    with pytest.raises(RunError, match=rf"{PREDICTIONS_FILE}, line 3: .*expected whole numbers"):
        read_predictions(written(tmp_path, HEADER, ROW, row))


@pytest.mark.parametrize(
    "data", [b"\xff\xfe\x00", b"\x89HDF\r\n\x1a\n\x00\xff", b'a,"' + b"x" * 200_000]
)
def test_what_is_no_table_is_rejected(tmp_path: Path, data: bytes) -> None:
    (tmp_path / PREDICTIONS_FILE).write_bytes(data)
    with pytest.raises(RunError, match=PREDICTIONS_FILE):
        read_predictions(tmp_path)


def test_a_table_that_is_not_there_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"does not exist; .*sacmil crossval"):
        read_predictions(tmp_path)


def test_tables_of_the_same_classes_are_joined_row_after_row() -> None:
    one = Predictions.from_rows(["no", "yes"], [("s", "x", "test", 0, 0, "a", 1)], [[0.5, 0.5]])
    longer = Predictions.from_rows(["no", "yes"], [("slide-2", "y", "val", 1, 0, "b", 0)], [[1, 0]])
    both = Predictions.concatenate([one, longer])
    assert both.slide_id.tolist() == ["s", "slide-2"]
    assert both.probabilities.tolist() == [[0.5, 0.5], [1, 0]]


def test_tables_of_different_classes_are_not_joined() -> None:
    one, other = (Predictions.from_rows(classes, [], []) for classes in (["a", "b"], ["b", "a"]))
    with pytest.raises(RunError, match=r"a, b; b, a"):
        Predictions.concatenate([one, other])


def test_a_failed_write_leaves_the_old_table(tmp_path: Path) -> None:
    file = written(tmp_path, HEADER, ROW)
    broken = Predictions.from_rows(["no", "yes"], [("s", "x", "test", 0, 0, "a", 5)], [[0.5, 0.5]])
    with pytest.raises(IndexError):
        write_predictions(file, broken)
    assert len(read_predictions(file)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [PREDICTIONS_FILE]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["s1,x,test,0,1,abmil,yes,0.25,0.75", "s1,z,test,0,1,abmil,yes,0.25,0.75"], "2 patients"),
        (["s1,x,test,0,1,abmil,yes,0.25,0.75", "s1,x,test,1,1,abmil,no,0.25,0.75"], "2 labels"),
        (["s1,x,tset,0,1,abmil,yes,0.25,0.75"], "split 'tset'"),
        ([",x,test,0,1,abmil,yes,0.25,0.75"], "is empty"),
        (["s1,x,test,0,1,abmil,yes,0.25,0.75,9"], "10 cells under 9 columns"),
    ],
)
def test_rows_that_contradict_each_other_are_rejected(tmp_path: Path, lines, expected) -> None:
    with pytest.raises(RunError, match=expected):
        read_predictions(written(tmp_path, HEADER, *lines))


def test_the_error_for_a_table_with_semicolons_asks_for_commas(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="save it with commas"):
        read_predictions(written(tmp_path, HEADER.replace(",", ";"), ROW.replace(",", ";")))


def test_a_split_may_be_written_in_capitals(tmp_path: Path) -> None:
    found = read_predictions(written(tmp_path, HEADER, ROW.replace("test", "Test")))
    assert found.split.tolist() == ["test"]


LOCALIZATION_ROW = SlideLocalization("s,1", "p\u00e9", 2, 1, "sac_mil", 9, 3, 1 / 3, 2 / 3)


def test_rows_read_back_exactly(tmp_path: Path) -> None:
    write_localization(tmp_path / LOCALIZATION_FILE, [LOCALIZATION_ROW])
    assert read_localization(tmp_path) == [LOCALIZATION_ROW]
    assert read_localization(tmp_path / LOCALIZATION_FILE) == [LOCALIZATION_ROW]


def test_a_slide_of_one_kind_has_empty_cells(tmp_path: Path) -> None:
    row = LOCALIZATION_ROW._replace(positives=0, auc=math.nan, average_precision=math.nan)
    write_localization(tmp_path / LOCALIZATION_FILE, [row])
    assert (tmp_path / LOCALIZATION_FILE).read_text(encoding="utf-8").endswith(",9,0,,\n")
    (found,) = read_localization(tmp_path)
    assert found[:7] == row[:7]
    assert math.isnan(found.auc)
    assert not found.has_both_labels


def test_a_run_without_the_file_has_no_rows(tmp_path: Path) -> None:
    assert read_localization(tmp_path) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("", "has the columns none; expected slide_id"),
        ("a,b\n", "has the columns a, b; expected slide_id"),
        ("{header}\ns,p,0,0,m,9\n", "line 2: cannot be parsed"),
        ("{header}\n\ns,p,x,0,m,9,3,0.5,0.5\n", "line 3: cannot be parsed"),
        ("{header}\ns,p,0,0,m,9,3,1.5,0.5\n", "line 2: has 1.5 and 0.5; expected 0 to 1"),
        ("{header}\ns,p,0,0,m,9,3,,\n", "line 2: has nan and nan; expected 0 to 1"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path: Path, wrong: str, message: str) -> None:
    header = ",".join(SlideLocalization._fields)
    (tmp_path / LOCALIZATION_FILE).write_text(wrong.format(header=header))
    with pytest.raises(RunError, match=message) as raised:
        read_localization(tmp_path)
    assert str(tmp_path / LOCALIZATION_FILE) in str(raised.value)
