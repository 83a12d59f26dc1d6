"""Outlines on disk become polygons, and tiles get their labels by the exact area covered."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacmil.cohorts.outlines import (
    compute_covered_share,
    label_tiles,
    make_outlines,
    read_asap,
    read_outlines,
)
from sacmil.errors import CohortError

SQUARE = [[0, 0], [100, 0], [100, 100], [0, 100]]


def test_json_outlines_are_read_zipped_or_not_and_in_ncrfs_own_form(tmp_path: Path) -> None:
    plain = {"tumor_001": {"positive": [SQUARE, [[1, 2], [3, 4]]], "negative": [SQUARE[:3]]}}
    ncrf = {"tumor_001": {"positive": [{"name": "a", "vertices": SQUARE}], "negative": []}}
    (tmp_path / "a.json").write_text(json.dumps(plain))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(plain).encode()))
    (tmp_path / "b.json").write_text(json.dumps(ncrf))
    for name in ("a.json", "a.json.gz", "b.json"):
        found = read_outlines(tmp_path / name)["tumor_001"]
        assert [polygon.tolist() for polygon in found.positive] == [SQUARE]  # two points are none
    assert len(read_outlines(tmp_path / "a.json")["tumor_001"].negative) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"a": []}',
        b'{"a": {"negative": []}}',
        b'{"a": {"positive": [[[0, 0], [1, 0], [1, ' + b"9" * 400 + b"]]]}}",
        b'{"a": {"positive": [[[1, 2, 3], [1, 2, 3], [1, 2, 3]]]}}',
        b'{"a": {"positive": [[[1, NaN], [1, 2], [3, 4]]]}}',
        b'{"a": {"positive": [["x", "y", "z"]]}}',
        gzip.compress(b"{}", mtime=0)[:-4],
        b"\xff",
    ],
)
def test_damaged_outlines_are_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(CohortError, match=r"a\.json"):
        read_outlines(tmp_path / "a.json")


def test_tiles_are_labelled_by_the_share_that_is_covered() -> None:
    outlines = make_outlines([SQUARE], [[[50, 0], [100, 0], [100, 50], [50, 50]]])
    coords = [[0, 0], [50, 0], [0, 75], [0, 80], [200, 0]]
    assert label_tiles(coords, 50, outlines).tolist() == [1, 0, 1, 0, 0]
    assert label_tiles(coords, 50, outlines, min_share=0.4).tolist() == [1, 0, 1, 1, 0]
    assert label_tiles(coords, 50, outlines, min_share=1).tolist() == [1, 0, 0, 0, 0]
    assert label_tiles(coords, 50, outlines).dtype == np.int64


@pytest.mark.parametrize("min_share", [0, -1, 1.1, float("nan")])
def test_a_share_that_makes_no_sense_is_rejected(min_share: float) -> None:
    with pytest.raises(CohortError, match="min_share"):
        label_tiles([[0, 0]], 50, make_outlines([SQUARE]), min_share=min_share)


@pytest.mark.parametrize("patch_size", [0, -256, float("nan")])
def test_a_patch_size_that_makes_no_sense_is_rejected(patch_size: float) -> None:
    with pytest.raises(CohortError, match="patch_size"):
        label_tiles([[0, 0]], patch_size, make_outlines([SQUARE]))


# --- ASAP -----------------------------------------------------------------------------------------

ONE = (
    "<ASAP_Annotations><Annotation><Coordinate POINT/><Coordinate X='2' Y='1'/>"
    "<Coordinate X='2' Y='2'/></Annotation></ASAP_Annotations>"
)


def annotation(group: str, points: list, kind: str = "Polygon") -> str:
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
def test_damaged_asap_files_are_rejected(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "a.xml").write_text(content)
    with pytest.raises(CohortError, match=expected):
        read_asap(tmp_path / "a.xml")


def test_an_asap_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CohortError, match="no such file"):
        read_asap(tmp_path / "a.xml")


# --- areas ----------------------------------------------------------------------------------------

BOX = np.array([[0, 0], [10, 0], [10, 10], [0, 10]], float)
TRIANGLE = np.array([[0, 0], [10, 0], [0, 10]], float)
HOLE = np.array([[2, 2], [8, 2], [8, 8], [2, 8]], float)
BOW = np.array([[0, 0], [10, 10], [10, 0], [0, 10]], float)
# winds twice around its middle
TWICE = np.array([[0, 0], [10, 0], [10, 10], [2, 10], [2, 2], [8, 2], [8, 8], [0, 8]], float)


def share(corner: tuple[float, float], *positive: np.ndarray, less: tuple = ()) -> float:
    return float(compute_covered_share([corner], 10, positive, less)[0])


@pytest.mark.parametrize(
    ("corner", "positive", "less", "expected"),
    [
        ((0, 0), (BOX,), (), 1),
        ((5, 5), (BOX,), (), 0.25),
        ((-3, 2), (BOX,), (), 0.7 * 0.8),
        ((10, 0), (BOX,), (), 0),  # they touch along a side
        ((0, 0), (TRIANGLE,), (), 0.5),
        ((5, 0), (TRIANGLE,), (), 0.125),
        ((0, 0), (BOX,), (HOLE,), 0.64),
        ((0, 0), (BOX, HOLE), (), 1),
        ((0, 0), (BOX, HOLE[::-1]), (), 1),
        ((0, 0), (BOX + 5, BOX - 5), (), 0.5),
        ((0, 0), (BOX + [5, 0], BOX + [0, 5]), (), 0.75),
        ((0, 0), (BOX + 100,), (), 0),
        ((0, 0), (BOW,), (), 0.5),
        ((0, 0), (TWICE,), (), 1 - 0.04),
        ((0, 0), (TRIANGLE, np.array([[10, 10], [10, 0], [0, 0]], float)), (), 0.75),
        ((0, 0), (BOX * 100 - 500,), (), 1),
        ((0, 0), (BOX * 100 - 500,), (BOX * 100 - 500,), 0),
        ((0, 0), (BOX * 100 - 500,), (TRIANGLE,), 0.5),
        ((0, 0), (np.array([[0, 0], [5, 5], [10, 10]], float),), (), 0),  # a line
    ],
)
def test_known_areas_are_exact(
    corner: tuple[float, float], positive: tuple, less: tuple, expected: float
) -> None:
    assert share(corner, *positive, less=less) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(*[st.integers(-3, 13)] * 4), min_size=1, max_size=4), st.integers(0, 2))
def test_boxes_on_a_grid_are_counted_square_by_square(boxes: list, holes: int) -> None:
    """Level and upright edges, shared ones too, on and off the borders of the tiles."""
    polygons, masks = [], []
    for x0, y0, x1, y1 in boxes:
        polygons.append(np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], float))
        mask = np.zeros((16, 16), dtype=bool)
        (x0, x1), (y0, y1) = sorted((x0, x1)), sorted((y0, y1))
        mask[x0 + 3 : x1 + 3, y0 + 3 : y1 + 3] = True
        masks.append(mask)
    first = max(1, len(boxes) - holes)
    covered = np.any(masks[:first], axis=0) & ~np.any([np.zeros((16, 16)), *masks[first:]], axis=0)
    corners = np.argwhere(np.ones((4, 4))) * 4 - 3
    expected = [covered[x : x + 4, y : y + 4].mean() for x, y in corners + 3]
    found = compute_covered_share(corners, 4, polygons[:first], polygons[first:])
    np.testing.assert_allclose(found, expected, atol=1e-12)


def blob(random: np.random.Generator, points: int, size: float) -> np.ndarray:
    """An outline as a hand draws it: round about, and crossing itself now and then."""
    turn = np.sort(random.uniform(0, 2 * np.pi, points)) + random.normal(0, 0.1, points)
    radius = size * random.uniform(0.3, 1, points)
    centre = random.uniform(0, 40, 2)
    return centre + radius[:, None] * np.stack([np.cos(turn), np.sin(turn)], 1)


def winding(points: np.ndarray, polygon: np.ndarray) -> np.ndarray:
    """Turns around points by summing angles: slow, and a different way than the one tested."""
    total = np.zeros(len(points))
    for start, end in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        a, b = start - points, end - points
        cross = a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
        total += np.arctan2(cross, (a * b).sum(1))
    return np.rint(total / (2 * np.pi))


@settings(max_examples=2, deadline=None)
@given(st.integers(0, 10_000))
def test_areas_agree_with_a_raster_count(seed: int) -> None:
    random = np.random.default_rng(seed)
    positive = [blob(random, int(random.integers(3, 10)), 15) for _ in range(3)]
    negative = [blob(random, 5, 10)]
    corners = np.concatenate([np.argwhere(np.ones((4, 4))) * 10.0, random.uniform(-5, 40, (6, 2))])
    steps = (np.arange(40) + 0.5) / 40 * 10
    offsets = np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 2)
    points = (corners[:, None] + offsets).reshape(-1, 2)
    inside = np.any([winding(points, polygon) != 0 for polygon in positive], axis=0)
    inside &= ~np.any([winding(points, polygon) != 0 for polygon in negative], axis=0)
    counted = inside.reshape(len(corners), -1).mean(1)
    np.testing.assert_allclose(
        compute_covered_share(corners, 10, positive, negative), counted, rtol=0, atol=0.02
    )


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10_000))
def test_tiles_of_a_grid_add_up_to_the_polygon(seed: int) -> None:
    random = np.random.default_rng(seed)
    turn = np.linspace(0, 2 * np.pi, 30, endpoint=False)  # so that it does not cross itself
    polygon = 50 + random.uniform(10, 45, (30, 1)) * np.stack([np.cos(turn), np.sin(turn)], 1)
    x, y = polygon.T
    area = abs((x * np.roll(y, -1) - y * np.roll(x, -1)).sum()) / 2
    grid = (np.argwhere(np.ones((12, 12))) - 1) * 10 + random.uniform(0, 5, 2)
    assert compute_covered_share(grid, 10, [polygon]).sum() * 100 == pytest.approx(area, rel=1e-9)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 10_000))
def test_direction_start_doubled_points_and_position_change_nothing(seed: int) -> None:
    random = np.random.default_rng(seed)
    polygons = [blob(random, 8, 15) for _ in range(2)]
    corners = random.uniform(-10, 40, (20, 2))
    expected = compute_covered_share(corners, 10, polygons)
    changed = [
        [polygon[::-1] for polygon in polygons],
        [np.roll(polygon, 3, axis=0) for polygon in polygons],
        [np.repeat(polygon, 2, axis=0) for polygon in polygons],
        [np.concatenate([polygon, polygon[:1]]) for polygon in polygons],
        [*polygons, polygons[0]],
    ]
    for other in changed:
        np.testing.assert_allclose(compute_covered_share(corners, 10, other), expected, atol=1e-9)
    far = np.array([120_000.0, 90_000.0])
    moved = compute_covered_share(corners + far, 10, [polygon + far for polygon in polygons])
    np.testing.assert_allclose(moved, expected, atol=1e-8)


def test_nothing_covers_nothing() -> None:
    assert compute_covered_share(np.zeros((0, 2)), 10, [BOX]).shape == (0,)
    assert compute_covered_share([[0, 0]], 10, []).tolist() == [0]
    assert compute_covered_share([[0, 0]], 10, [], [BOX]).tolist() == [0]


def test_long_edges_far_beyond_the_tiles_are_seen() -> None:
    huge = np.array([[-1e5, -1e5], [1e5, -1e5], [1e5, 1e5]], float)  # its edge is the diagonal
    corners = np.array([[0, 0], [0, 10], [10, 0], [5, 0]], float)
    np.testing.assert_allclose(
        compute_covered_share(corners, 10, [huge]), [0.5, 0, 1, 0.875], atol=1e-9
    )
