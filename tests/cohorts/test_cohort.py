"""Tables become cohorts, whatever their columns are called; or one list of what is wrong."""

from __future__ import annotations

import random
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacmil.cohorts.cohort import Cohort, LabeledSlide, read_cohort, write_cohort
from sacmil.cohorts.rows import parse_barcode, parse_slide_id
from sacmil.cohorts.sheet import read_sheet
from sacmil.errors import CohortError, CohortWarning, MissingExtraError

CLAM = "case_id,slide_id,label\np0,s0,tumor\np0,s1,normal\np1,s2,tumor\np2,s3,normal\n"


def write(folder: Path, text: str, name: str = "table.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def problems(path: Path, **options: object) -> list[str]:
    with pytest.raises(CohortError) as raised:
        read_cohort(path, **options)
    assert str(path) in str(raised.value)
    return raised.value.problems


def test_clams_table_is_read_as_it_is(tmp_path: Path) -> None:
    cohort = read_cohort(write(tmp_path, CLAM))
    assert cohort.classes == ("normal", "tumor")
    assert cohort.slides[1] == LabeledSlide("s1", "p0", 0)
    assert [len(slides) for slides in cohort.patients.values()] == [2, 1, 1]
    assert cohort.patients_per_class == (2, 2)


@pytest.mark.parametrize(
    ("separator", "encoding", "newline"),
    [(",", "utf-8-sig", "\r\n"), (";", "utf-8", "\r"), ("\t", "utf-16", "\n")],
)
def test_separator_encoding_and_line_ends_change_nothing(
    tmp_path: Path, separator: str, encoding: str, newline: str
) -> None:
    text = CLAM.replace(",", separator).replace("\n", newline) + newline
    path = write(tmp_path, text, encoding=encoding)
    assert read_cohort(path) == read_cohort(write(tmp_path, CLAM, "plain.csv"))


@pytest.mark.parametrize(
    "header",
    [
        "PATIENT,FILENAME,target",
        "pat_id,slide_id,Label",
        "patient,slide,category",
        "case_id,wsi,label",
    ],
)
def test_columns_are_known_by_their_usual_names_in_any_case(tmp_path: Path, header: str) -> None:
    text = CLAM.replace("case_id,slide_id,label", header)
    assert read_cohort(write(tmp_path, text)) == read_cohort(write(tmp_path, CLAM, "plain.csv"))


def test_ids_keep_their_leading_zeros_and_lose_folders_and_suffixes(tmp_path: Path) -> None:
    rows = (
        "slide,patient,label\nold/007.svs,01,a\n0070.tif.h5,1,b\n\\\\nas\\x\\08.NDPI,2,a\n9,3,b\n"
    )
    cohort = read_cohort(write(tmp_path, rows))
    assert [slide.slide_id for slide in cohort.slides] == ["007", "0070", "08", "9"]
    assert [slide.patient_id for slide in cohort.slides] == ["01", "1", "2", "3"]


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(blacklist_characters="/\\"), min_size=1).filter(str.strip))
def test_a_slides_name_has_one_spelling(name: str) -> None:
    once = parse_slide_id(name)
    assert parse_slide_id(once) == once
    assert parse_slide_id(f"some/folder/{name}.svs") == once


def test_labels_that_are_numbers_sort_as_numbers_however_pandas_writes_them(
    tmp_path: Path,
) -> None:
    rows = "".join(f"s{i},p{i},{label}\n" for i, label in enumerate(["10", "2.0", "2", "10.0"]))
    cohort = read_cohort(write(tmp_path, "slide,patient,label\n" + rows))
    assert cohort.classes == ("2", "10")
    assert cohort.labels == (1, 0, 0, 1)


def test_a_column_of_names_names_numbered_labels(tmp_path: Path) -> None:
    text = "slide_id,name,label\na.svs,LUSC,0\nb.svs,LUAD,1\nc.svs,LUAD,1\nd.svs,LUSC,0\n"
    with pytest.warns(CohortWarning, match="4 slides count as a patient each"):
        cohort = read_cohort(write(tmp_path, text))
    assert cohort.classes == ("LUSC", "LUAD")
    assert cohort.labels == (0, 1, 1, 0)


def test_a_column_of_peoples_names_names_no_labels(tmp_path: Path) -> None:
    text = "slide,patient,name,label\na,1,Ann,0\nb,2,Bob,1\nc,3,Cid,1\nd,4,Dot,0\n"
    assert read_cohort(write(tmp_path, text)).classes == ("0", "1")


def test_classes_may_be_put_in_another_order(tmp_path: Path) -> None:
    cohort = read_cohort(write(tmp_path, CLAM), classes=["tumor", "normal"])
    assert cohort.classes == ("tumor", "normal")
    assert cohort.labels == (0, 1, 0, 1)


def test_labels_spelled_in_two_ways_are_no_two_classes(tmp_path: Path) -> None:
    path = write(tmp_path, CLAM.replace("s2,tumor", "s2,Tumor"))
    (message,) = problems(path, min_patients=1)
    assert "'Tumor', 'tumor' differ only in case" in message
    assert read_cohort(path, classes=["normal", "tumor", "Tumor"], min_patients=1).labels == (
        1,
        0,
        2,
        0,
    )


def test_tcga_barcodes_name_their_patients_and_sites(tmp_path: Path) -> None:
    names = ["TCGA-3C-AALI-01Z-00-DX1", "TCGA-3C-AALI-01Z-00-DX2", "TCGA-A2-A0CL-01Z-00-DX1"]
    rows = "".join(f"{name}.svs,{label}\n" for name, label in zip(names, "aab", strict=True))
    path = write(tmp_path, "slide_id,label\n" + rows)
    with pytest.warns(CohortWarning, match="first 12 characters"):
        cohort = read_cohort(path, site="barcode", min_patients=1)
    assert list(cohort.patients) == ["TCGA-3C-AALI", "TCGA-A2-A0CL"]
    assert {slide.site for slide in cohort.slides} == {"3C", "A2"}
    assert parse_barcode("TCGA-3C-AALIX") is None


def test_everything_wrong_is_reported_at_once(tmp_path: Path) -> None:
    rows = "s0,p0,a\ns0,p0,a\n,p1,a\ns2,,b\ns3,p3,\ns4,p4,b\ns5,p5,c\n"
    found = problems(write(tmp_path, "slide,patient,label\n" + rows), classes=["a", "b"])
    message = "\n".join(found)
    for expected in (
        "slide 's0' occurs 2 times (line 2, line 3)",
        "line 4: the slide id is empty",
        "line 5: the patient is empty",
        "line 6: the label is empty",
        "label 'c' is unknown (line 8); known are: a, b",
    ):
        assert expected in message
    assert len(found) == 5


def test_a_class_of_one_patient_is_rejected_however_many_slides_it_has(tmp_path: Path) -> None:
    text = CLAM + "p9,x1,rare\np9,x2,rare\n"
    (problem,) = problems(write(tmp_path, text))
    assert "'rare' has 1 patient;" in problem
    assert len(read_cohort(write(tmp_path, text), min_patients=1)) == 6


def test_one_class_is_none(tmp_path: Path) -> None:
    assert "fewer than two classes" in problems(write(tmp_path, "slide,patient,label\na,b,c\n"))[0]


def test_a_column_of_measurements_is_not_taken_for_labels(tmp_path: Path) -> None:
    rows = "".join(f"s{i},p{i},{i / 7}\n" for i in range(50))
    (problem,) = problems(write(tmp_path, "slide,patient,months\n" + rows), label="months")
    assert problem.startswith("50 of 50 labels have fewer than 2 patients")


def test_a_missing_label_column_lists_those_there_are(tmp_path: Path) -> None:
    (problem,) = problems(write(tmp_path, CLAM.replace("label", "subtype")))
    assert "case_id, slide_id, subtype" in problem
    assert "name it by `label`" in problem
    (problem,) = problems(write(tmp_path, CLAM), label="labl")
    assert "did you mean 'label'" in problem


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"slide,patient,label\na\xe9,b,c\n", "not UTF-8"),
        (b"slide,patient,label\na,b,c,d\n", "line 2: more cells"),
        (b"slide,slide,patient,label\na,b,c,d\n", "two columns are called 'slide'"),
        (b"slide,patient,label\n", "a header and no rows"),
        (b'slide,patient,label\n"' + b"x" * 200_000 + b'",b,c\n', "cannot be read as CSV"),
        (b"x" * 200_000 + b",patient,label\na,b,c\n", "cannot be read as CSV"),
        (bytes(range(256)), "not UTF-8"),
        (b"slide,patient,label\na,b,c\nd\0,b,c\n", "line 3: found a NUL character"),
        (b",".join(b"c%d" % n for n in range(50_000)) + b"\n1\n", "no column of slides found"),
    ],
)
def test_damaged_tables_are_rejected_with_a_reason(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    assert expected in problems(path)[0]


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    for name in ("a.csv", "a.xlsx"):
        assert "there is no such file" in problems(tmp_path / name)[0]
    assert "save it as .xlsx" in problems(write(tmp_path, CLAM, "a.xls"))[0]


def test_quoted_commas_and_line_breaks_belong_to_their_cell(tmp_path: Path) -> None:
    text = 'slide,patient,label\n"a, 1",p,"x\ny"\nb,q,"x\ny"\nc,r,z\nd,s,z\n'
    cohort = read_cohort(write(tmp_path, text))
    assert cohort.slides[0].slide_id == "a, 1"
    assert cohort.classes == ("x\ny", "z")


# --- Excel ----------------------------------------------------------------------------------------


def excel(path: Path, sheets: dict[str, list[list[object]]], formats: dict[str, str]) -> Path:
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        page = book.create_sheet(name)
        for row in rows:
            page.append(row)
    for cell, number_format in formats.items():
        book.worksheets[0][cell].number_format = number_format
    book.save(path)
    return path


def test_excel_says_what_csv_says(tmp_path: Path) -> None:
    rows = [line.split(",") for line in CLAM.splitlines()]
    path = excel(tmp_path / "t.xlsx", {"other": [["x"]], "slides": rows}, {})
    assert read_cohort(path, sheet="slides") == read_cohort(write(tmp_path, CLAM))
    assert "did you mean 'slides'" in problems(path, sheet="slide")[0]
    assert "no sheets" in problems(write(tmp_path, CLAM), sheet="slides")[0]


def test_excel_numbers_are_read_as_a_person_sees_them(tmp_path: Path) -> None:
    rows = [["slide", "patient", "label"], [7, 1.0, 0], [8, 2, 1], ["009", 3, 0], [10, 4, 1]]
    cohort = read_cohort(excel(tmp_path / "t.xlsx", {"s": rows}, {"A2": "000"}))
    assert [slide.slide_id for slide in cohort.slides] == ["007", "8", "009", "10"]
    assert cohort.slides[0].patient_id == "1"
    assert cohort.classes == ("0", "1")


def test_damaged_excel_is_rejected_with_a_reason(tmp_path: Path) -> None:
    path = excel(tmp_path / "t.xlsx", {"s": [["slide"]]}, {})
    path.write_bytes(path.read_bytes()[:-200])
    assert "cannot be read as Excel" in problems(path)[0]
    assert "cannot be read as Excel" in problems(write(tmp_path, CLAM, "text.xlsx"))[0]


def rewrite_sheet(path: Path, old: str, new: str) -> Path:
    """Replace text in the XML of the first sheet."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name).decode() for name in archive.namelist()}
    name = "xl/worksheets/sheet1.xml"
    assert old in members[name]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, text in members.items():
            archive.writestr(member, text.replace(old, new, 1) if member == name else text)
    return path


def test_formatted_cells_far_from_the_table_are_no_part_of_it(tmp_path: Path) -> None:
    rows = [line.split(",") for line in CLAM.splitlines()]
    path = excel(tmp_path / "t.xlsx", {"s": rows}, {"XFD2": "0.00", "XFD9999": "0.00"})
    assert read_sheet(path) == replace(read_sheet(write(tmp_path, CLAM)), path=path)


def test_notes_beside_an_excel_table_belong_to_no_column(tmp_path: Path) -> None:
    rows = [line.split(",") for line in CLAM.splitlines()]
    rows[2] += ["", "", "look at this one again"]
    assert len(read_cohort(excel(tmp_path / "t.xlsx", {"s": rows}, {}))) == 4


def test_a_sheet_that_never_ends_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = excel(tmp_path / "t.xlsx", {"s": [["slide"], ["a"]]}, {})
    rewrite_sheet(path, '<row r="2"', '<row r="99999999999"')
    monkeypatch.setattr("sacmil.cohorts.sheet._MAX_ROWS", 1000)
    assert "delete the formatted rows" in problems(path)[0]
    monkeypatch.setattr("sacmil.cohorts.sheet._MAX_BYTES", 1000)
    assert "unpacks to" in problems(path)[0]


def test_a_sheet_whose_xml_is_cut_is_rejected_with_a_reason(tmp_path: Path) -> None:
    path = excel(tmp_path / "t.xlsx", {"s": [["slide"], ["a"]]}, {})
    assert "cannot be read as Excel" in problems(rewrite_sheet(path, "</sheetData>", ""))[0]


def test_without_openpyxl_excel_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = excel(tmp_path / "t.xlsx", {"s": [["slide"]]}, {})
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(MissingExtraError, match="excel"):
        read_cohort(path)


# --- STAMP's two tables ---------------------------------------------------------------------------

CLINI = "PATIENT,AGE,MSI\n01,50,high\n02,60,low\n03,70,low\n04,80,high\n"
SLIDES = "PATIENT,FILENAME\n01,x/a.h5\n01,x/b.h5\n02,c.h5\n03,d.h5\n04,e.h5\n"


def test_stamps_two_tables_are_joined_by_patient(tmp_path: Path) -> None:
    slides = write(tmp_path, SLIDES, "slide.csv")
    path = write(tmp_path, CLINI)
    cohort = read_cohort(path, label="MSI", slide_table=slides, site="AGE")
    assert cohort.classes == ("high", "low")
    assert cohort.slides[1] == LabeledSlide("b", "01", 0, "50")
    assert len(cohort) == 5


def test_stamps_tables_may_know_different_patients_and_say_how_many(tmp_path: Path) -> None:
    path = write(tmp_path, CLINI + "05,1,high\n06,2,\n")
    slides = write(tmp_path, SLIDES + "06,f.h5\n07,g.h5\n07,h.h5\n", "slide.csv")
    expected = "2 slides of patients that table.csv does not have, 1 slides of patients without"
    with pytest.warns(CohortWarning, match=expected):
        cohort = read_cohort(path, label="MSI", slide_table=slides)
    assert len(cohort) == 5


def test_stamps_tables_with_no_patient_in_common_are_rejected(tmp_path: Path) -> None:
    slides = write(tmp_path, SLIDES.replace("\n0", "\n"), "slide.csv")
    with pytest.raises(CohortError, match="lost zeros"):
        read_cohort(write(tmp_path, CLINI), label="MSI", slide_table=slides)


def test_a_patient_with_two_labels_in_stamps_table_is_rejected(tmp_path: Path) -> None:
    slides = write(tmp_path, SLIDES, "slide.csv")
    path = write(tmp_path, CLINI + "01,50,low\n")
    assert "'01' occurs in several rows" in problems(path, label="MSI", slide_table=slides)[0]


# --- sites, hashes, subsets -----------------------------------------------------------------------


def test_a_patient_of_two_sites_is_rejected_if_sites_are_requested(tmp_path: Path) -> None:
    text = "slide,patient,label,site\na,p,x,A\nb,p,x,B\nc,q,y,A\nd,r,y,A\ne,s,x,B\n"
    path = write(tmp_path, text)
    assert problems(path, site="site") == ["patient 'p' has several sites (A, B); expected one"]
    assert len(read_cohort(path)) == 5


def test_the_hash_is_of_the_content_not_of_the_order(tmp_path: Path) -> None:
    header, *rows = CLAM.splitlines()
    random.Random(1).shuffle(rows)
    same = read_cohort(write(tmp_path, "\n".join([header, *rows]), "shuffled.csv"))
    cohort = read_cohort(write(tmp_path, CLAM))
    other = read_cohort(write(tmp_path, CLAM.replace("p1,", "p9,"), "other.csv"))
    assert cohort.sha256 == same.sha256 != other.sha256
    assert cohort.sha256 != Cohort(cohort.slides, ("tumor", "normal")).sha256


def test_a_table_that_was_written_reads_back(tmp_path: Path) -> None:
    cohort = read_cohort(write(tmp_path, CLAM), classes=["tumor", "normal"])
    write_cohort(tmp_path / "again.csv", cohort)
    assert read_cohort(tmp_path / "again.csv") == cohort


def test_a_part_of_a_cohort_keeps_its_classes(tmp_path: Path) -> None:
    cohort = read_cohort(write(tmp_path, CLAM))
    part = cohort.restrict_to(["s2", "s0", "unknown"])
    assert [slide.slide_id for slide in part.slides] == ["s0", "s2"]
    assert part.classes == cohort.classes
    assert [slide.slide_id for slide in cohort.get_slides(["s3", "s1"])] == ["s3", "s1"]
