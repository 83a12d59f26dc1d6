"""ASAP's XML is read for what it says and for nothing it might do."""

from __future__ import annotations

from pathlib import Path

import pytest

from sacmil.cohorts.asap import read_asap
from sacmil.cohorts.outlines import label_tiles
from sacmil.errors import CohortError

ONE = (
    "<ASAP_Annotations><Annotation><Coordinate POINT/><Coordinate X='2' Y='1'/>"
    "<Coordinate X='2' Y='2'/></Annotation></ASAP_Annotations>"
)


def annotation(group: str, points: list[tuple[float, float]], kind: str = "Polygon") -> str:
    rows = "".join(f'<Coordinate Order="{n}" X="{x}" Y="{y}" />' for n, (x, y) in enumerate(points))
    return (
        f'<Annotation Name="A" Type="{kind}" PartOfGroup="{group}" Color="#F4FA58">'
        f"<Coordinates>{rows}</Coordinates></Annotation>"
    )


def write(folder: Path, *annotations: str, before: str = "") -> Path:
    path = folder / "tumor_001.xml"
    groups = '<AnnotationGroups><Group Name="_0" PartOfGroup="None" /></AnnotationGroups>'
    body = f"<Annotations>{''.join(annotations)}</Annotations>{groups}"
    path.write_text(f'<?xml version="1.0"?>{before}<ASAP_Annotations>{body}</ASAP_Annotations>')
    return path


SQUARE = [(0, 0), (100, 0), (100, 100), (0, 100)]
INNER = [(25, 25), (75, 25), (75, 75), (25, 75)]


@pytest.mark.parametrize("exclusion", ["_2", "Exclusion", "exclusion", "normal"])
def test_groups_separate_tumour_from_exclusions(tmp_path: Path, exclusion: str) -> None:
    outlines = read_asap(
        write(
            tmp_path,
            annotation("_0", SQUARE),
            annotation("_1", SQUARE, "Spline"),
            annotation("Tumor", SQUARE, "Rectangle"),
            annotation(exclusion, INNER),
            annotation("_0", [(1, 1)], "Dot"),
            annotation("_0", SQUARE, "PointSet"),
        )
    )
    assert (len(outlines.positive), len(outlines.negative)) == (3, 1)
    assert label_tiles([[0, 0], [25, 25]], 50, outlines, min_share=0.7).tolist() == [1, 0]


def test_other_groups_may_be_the_exclusions(tmp_path: Path) -> None:
    path = write(tmp_path, annotation("_0", SQUARE), annotation("necrosis", INNER))
    assert len(read_asap(path).positive) == 2
    assert len(read_asap(path, exclusions=["Necrosis"]).negative) == 1


def test_points_go_by_their_order_and_numbers_by_any_country(tmp_path: Path) -> None:
    text = annotation("_0", SQUARE)
    rows = [f'<Coordinate Order="{n}" X="{x},5" Y="{y},5" />' for n, (x, y) in enumerate(SQUARE)]
    start, end = text.index("<Coordinate "), text.index("</Coordinates>")
    shuffled = text[:start] + "".join(rows[n] for n in (2, 0, 3, 1)) + text[end:]
    (polygon,) = read_asap(write(tmp_path, shuffled)).positive
    assert polygon.tolist() == [[x + 0.5, y + 0.5] for x, y in SQUARE]


def test_a_slide_without_annotations_has_no_outlines(tmp_path: Path) -> None:
    assert read_asap(write(tmp_path)) == ((), ())


def test_entities_and_document_types_are_rejected_before_they_grow(tmp_path: Path) -> None:
    levels = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    bomb = f'<!DOCTYPE x [<!ENTITY a0 "ha">{levels}]>'
    outside = '<!DOCTYPE x SYSTEM "file:///etc/passwd">'
    for before in (bomb, outside, "<!DOCTYPE x>"):
        with pytest.raises(CohortError, match="document type or entities"):
            read_asap(write(tmp_path, before=before))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "no element found"),
        ("<ASAP_Annotations>", "no element found"),
        ("<html></html>", "its root is 'html'"),
        ("<ASAP_Annotations><Coordinate X='1' Y='2'/></ASAP_Annotations>", "outside an Annotation"),
        (ONE.replace("POINT", "X='1'"), "without X, Y"),
        (ONE.replace("POINT", "X='a' Y='1'"), "could not convert"),
        (ONE.replace("POINT", "X='inf' Y='1'"), "expected finite points"),
    ],
)
def test_damaged_files_are_rejected(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "a.xml").write_text(content)
    with pytest.raises(CohortError, match=expected):
        read_asap(tmp_path / "a.xml")


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CohortError, match="no such file"):
        read_asap(tmp_path / "a.xml")
