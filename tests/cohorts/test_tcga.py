"""What the GDC offers for download becomes TCGA-LUNG and TCGA-BRCA."""

from __future__ import annotations

from pathlib import Path

import pytest

from sacmil.cohorts.splits import make_folds
from sacmil.cohorts.tcga import read_tcga_brca, read_tcga_lung
from sacmil.errors import CohortError, CohortWarning

HEADER = "File ID\tFile Name\tData Category\tData Type\tProject ID\tCase ID\tSample ID\tSample Type"


def sheet(path: Path, slides: list[tuple[str, str]]) -> Path:
    kind = ("Biospecimen", "Slide Image")
    rows = [
        "\t".join([f"{n:08}", name, *kind, project, name[:12], name[:16], "Primary Tumor"])
        for n, (name, project) in enumerate(slides)
    ]
    path.write_text("\n".join([HEADER, *rows]))
    return path


def slide(case: str, kind: str = "01Z-00-DX1") -> str:
    return f"TCGA-{case}-{kind}.0A1B2C3D-0000.svs"


LUNG = [
    (slide("05-4244"), "TCGA-LUAD"),
    (slide("05-4244", "01Z-00-DX2"), "TCGA-LUAD"),
    (slide("05-4244", "01A-01-TS1"), "TCGA-LUAD"),
    (slide("44-2655", "11A-01-BS1"), "TCGA-LUAD"),
    (slide("44-2655"), "TCGA-LUAD"),
    (slide("18-3406"), "TCGA-LUSC"),
    (slide("22-4593"), "TCGA-LUSC"),
    ("TCGA-18-3406.annotations.txt", "TCGA-LUSC"),
]


def test_lung_takes_diagnostic_slides_and_their_project(tmp_path: Path) -> None:
    cohort = read_tcga_lung(sheet(tmp_path / "s.tsv", LUNG))
    assert cohort.classes == ("LUSC", "LUAD")
    assert [s.slide_id[5:23] for s in cohort.slides] == [
        "05-4244-01Z-00-DX1",
        "05-4244-01Z-00-DX2",
        "44-2655-01Z-00-DX1",
        "18-3406-01Z-00-DX1",
        "22-4593-01Z-00-DX1",
    ]
    assert cohort.labels == (1, 1, 1, 0, 0)
    assert len(cohort.patients["TCGA-05-4244"]) == 2
    assert [s.site for s in cohort.slides] == ["05", "05", "44", "18", "22"]


def test_lung_may_come_in_two_sheets_and_leaves_other_projects_out(tmp_path: Path) -> None:
    one = sheet(tmp_path / "luad.tsv", [row for row in LUNG if row[1] == "TCGA-LUAD"])
    rest = [row for row in LUNG if row[1] == "TCGA-LUSC"] + [(slide("A2-A0CL"), "TCGA-BRCA")]
    two = sheet(tmp_path / "lusc.tsv", rest)
    with pytest.warns(CohortWarning, match=r"left out: 1 slides of other projects \(BRCA 1\)"):
        cohort = read_tcga_lung(one, two)
    assert cohort == read_tcga_lung(sheet(tmp_path / "s.tsv", LUNG))


def test_a_table_with_labels_needs_no_sample_sheet(tmp_path: Path) -> None:
    names = [name for name, _ in LUNG if "DX" in name]
    labels = ["LUAD,1", "LUAD,1", "LUAD,1", "LUSC,0", "LUSC,0"]
    rows = [f"{name},{label}" for name, label in zip(names, labels, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["slide_id,name,label", *rows]))
    cohort = read_tcga_lung(tmp_path / "t.csv")
    assert cohort.sha256 == read_tcga_lung(sheet(tmp_path / "s.tsv", LUNG)).sha256
    with pytest.raises(CohortError, match="classes LUSC, LUAD; expected IDC, ILC"):
        read_tcga_brca(tmp_path / "t.csv")


BRCA = [slide(f"A2-A0C{letter}") for letter in "ABCDEFG"]
TYPES = {
    "A": "Infiltrating Ductal Carcinoma",
    "B": "Infiltrating duct carcinoma, NOS",
    "C": "Infiltrating Lobular Carcinoma",
    "D": "Lobular carcinoma, NOS",
    "E": "Infiltrating duct and lobular carcinoma",
    "F": "Mucinous Carcinoma",
}


@pytest.mark.parametrize("case", ["bcr_patient_barcode", "case_submitter_id", "Case ID"])
@pytest.mark.parametrize("kind", ["histological_type", "primary_diagnosis"])
def test_brca_takes_the_two_types_and_counts_the_others(
    tmp_path: Path, case: str, kind: str
) -> None:
    rows = [f"TCGA-A2-A0C{letter}\t{text}\tx" for letter, text in TYPES.items()]
    path = tmp_path / "clinical.tsv"
    path.write_text("\n".join([f"{case}\t{kind}\tother", *rows, *rows]))  # a row per treatment
    sample = sheet(tmp_path / "s.tsv", [(name, "TCGA-BRCA") for name in BRCA])
    with pytest.warns(CohortWarning, match=r"3 slides of other types .*Mucinous.*unknown 1"):
        cohort = read_tcga_brca(sample, path)
    assert cohort.classes == ("IDC", "ILC")
    assert cohort.labels == (0, 0, 1, 1)


def test_brca_may_be_labelled_by_slide(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    rows = [f"{name},{kind}" for name, kind in zip(BRCA, ["IDC", "ILC"] * 4, strict=False)]
    path.write_text("\n".join(["slide_id,name", *rows]))
    sample = sheet(tmp_path / "s.tsv", [(name, "TCGA-BRCA") for name in BRCA])
    assert read_tcga_brca(sample, path).labels == (0, 1, 0, 1, 0, 1, 0)


def test_a_patient_of_two_types_is_of_neither(tmp_path: Path) -> None:
    path = tmp_path / "clinical.csv"
    rows = [f"TCGA-A2-A0C{letter},{kind}" for letter, kind in zip("AABCDE", "idilid", strict=True)]
    text = "\n".join(["case_id,type", *rows]).replace(",i", ",IDC").replace(",d", ",ILC")
    path.write_text(text.replace(",l", ",ILC"))
    sample = sheet(tmp_path / "s.tsv", [(name, "TCGA-BRCA") for name in BRCA[:5]])
    with pytest.warns(CohortWarning, match="two types 1"):
        assert "TCGA-A2-A0CA" not in read_tcga_brca(sample, path, column="type").patients


def test_what_is_missing_is_reported(tmp_path: Path) -> None:
    sample = sheet(tmp_path / "s.tsv", [(name, "TCGA-BRCA") for name in BRCA])
    with pytest.raises(CohortError, match="give a clinical table"):
        read_tcga_brca(sample)
    (tmp_path / "c.csv").write_text("a,b\n1,2\n")
    with pytest.raises(CohortError, match="expected bcr_patient_barcode and histological_type"):
        read_tcga_brca(sample, tmp_path / "c.csv")
    with pytest.raises(CohortError, match="expected a GDC sample sheet"):
        read_tcga_brca(tmp_path / "c.csv", sample)
    with pytest.raises(CohortError, match="lists no diagnostic slide"):
        read_tcga_lung(sheet(tmp_path / "x.tsv", [(slide("05-4244", "01A-01-TS1"), "TCGA-LUAD")]))


def test_hospitals_can_be_kept_whole(tmp_path: Path) -> None:
    slides = [
        (slide(f"{site}-{n:04}"), f"TCGA-{'LUAD' if n % 2 else 'LUSC'}")
        for site in ("05", "18", "22", "44", "A2", "B3")
        for n in range(6)
    ]
    cohort = read_tcga_lung(sheet(tmp_path / "s.tsv", slides))
    for fold in make_folds(cohort, 3, preserve_sites=True):
        assert len({s.site for s in cohort.get_slides(fold.test)}) == 2
