"""Outlines survive the round trip through QuPath; other files are rejected."""

from __future__ import annotations

import json
import uuid
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import shapely
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import ndimage
from shapely import LineString

from sacmil.errors import FormatError, NoTissueError
from sacmil.slides import outline
from sacmil.slides.outline import add_tissue_mode, from_geojson, read_tissue_mode, to_geojson
from sacmil.slides.pixels import scaled_shape
from sacmil.slides.tissue import Tissue

Mask = npt.NDArray[np.bool_]


def blobs(seed: int, side: int = 200, grain: float = 8.0) -> Mask:
    noise = ndimage.gaussian_filter(np.random.default_rng(seed).random((side, side)), grain)
    return np.asarray(noise > np.median(noise))


def tissue_of(mask: Mask, downsample: float = 16.0) -> Tissue:
    height, width = mask.shape
    return Tissue(mask, downsample, (round(width * downsample), round(height * downsample)))


def square(x: float, y: float, side: float) -> list[list[float]]:
    return [[x, y], [x + side, y], [x + side, y + side], [x, y + side], [x, y]]


def feature(rings: Any, name: Any = "Tissue", kind: str = "Polygon") -> dict[str, Any]:
    return {
        "type": "Feature",
        "geometry": {"type": kind, "coordinates": rings},
        "properties": {"classification": {"name": name, "color": [1, 2, 3]}},
    }


def read(document: Any, origin: tuple[int, int] | None = None) -> Mask:
    text = document if isinstance(document, str | bytes) else json.dumps(document)
    return from_geojson(text, (1000, 800), origin, 10.0, source="slide.geojson").mask


@given(
    seed=st.integers(0, 10_000),
    downsample=st.floats(1.5, 64.0),
    origin=st.sampled_from([None, (0, 0), (137, 4242)]),
    cut=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
)
@settings(max_examples=15, deadline=None)
def test_the_round_trip_loses_less_than_a_hundredth(
    seed: int, downsample: float, origin: tuple[int, int] | None, cut: tuple[float, float]
) -> None:
    width, height = (int((200 - lost) * downsample) for lost in cut)
    rows, columns = scaled_shape((width, height), downsample)
    mask = blobs(seed)[:rows, :columns]
    before = Tissue(mask, downsample, (width, height))
    after = from_geojson(to_geojson(before, origin), before.slide_size, origin, downsample)
    assert after.mask.sum() == pytest.approx(mask.sum(), rel=0.01)
    assert (after.mask ^ mask).sum() < 0.02 * mask.sum()


def test_a_mask_that_fills_the_slide_comes_back_complete() -> None:
    before = Tissue(np.ones((157, 140), bool), 16.0, (2233, 2500))
    after = from_geojson(to_geojson(before), before.slide_size, None, 16.0)
    assert after.mask.all()


def test_holes_and_islands_within_holes_come_back() -> None:
    y, x = np.ogrid[:120, :120]
    distance = np.hypot(y - 60, x - 60)
    rings = (distance < 50) & ~((distance < 35) & (distance > 15))
    text = to_geojson(tissue_of(rings))
    polygons = [item["geometry"]["coordinates"] for item in json.loads(text)["features"]]
    assert sorted(len(polygon) for polygon in polygons) == [1, 2]
    after = from_geojson(text, (1920, 1920), None, 16.0).mask
    assert (after ^ rings).sum() < 0.02 * rings.sum()


def test_features_are_what_qupath_edits() -> None:
    document = json.loads(to_geojson(tissue_of(blobs(3)), (5, 7)))
    assert document["type"] == "FeatureCollection"
    identities = [item["id"] for item in document["features"]]
    assert len(set(identities)) == len(identities) > 1
    for item in document["features"]:
        assert uuid.UUID(item["id"]).version == 5
        assert item["properties"]["objectType"] == "annotation"
        assert item["properties"]["isLocked"] is False
        assert item["properties"]["classification"]["name"] == "Tissue"
        assert len(item["properties"]["classification"]["color"]) == 3
        for ring in item["geometry"]["coordinates"]:
            assert ring[0] == ring[-1]
            assert len(ring) >= 4
            assert all(isinstance(number, int) for corner in ring for number in corner)


def test_equal_masks_give_equal_text_and_the_origin_only_shifts_it() -> None:
    tissue = tissue_of(blobs(5))
    assert to_geojson(tissue) == to_geojson(tissue_of(blobs(5)))
    plain, shifted = (json.loads(to_geojson(tissue, at))["features"] for at in (None, (100, 30)))
    for one, other in zip(plain, shifted, strict=True):
        corners = np.array(one["geometry"]["coordinates"][0]) - (100, 30)
        np.testing.assert_array_equal(corners, other["geometry"]["coordinates"][0])


def test_even_the_most_complex_tissue_makes_a_small_file(monkeypatch: pytest.MonkeyPatch) -> None:
    tissue = tissue_of(blobs(0, side=120, grain=1.0))
    detailed = to_geojson(tissue)
    monkeypatch.setattr(outline, "_MAX_BYTES", len(detailed) // 2)
    assert 0 < len(to_geojson(tissue)) <= len(detailed) // 2


@given(
    corners=st.lists(
        st.tuples(st.floats(-300, 1300), st.floats(-300, 1100)), min_size=3, max_size=9
    )
)
@example([(0.0, 0.0), (1.0, 18.0), (999.5, 4.0)])
@example([(0.0, 0.0), (86.0, 86.0), (-101.0, -101.0)])  # along the centers of pixels
@settings(max_examples=40, deadline=None)
def test_a_pixel_is_inside_if_an_odd_number_of_borders_is_to_its_left(
    corners: list[tuple[float, float]],
) -> None:
    # a corner in the last half pixel of the slide is moved to its edge
    corners = [(1000.0 if 999.5 <= x <= 1000 else x, y) for x, y in corners]
    corners = [(x, 800.0 if 799.5 <= y <= 800 else y) for x, y in corners]
    expected, on_border = np.zeros((2, 80, 100), bool)
    y, x = 10 * np.mgrid[:80, :100] + 5
    for (x0, y0), (x1, y1) in zip(corners, corners[1:] + corners[:1], strict=True):
        if y0 != y1:
            crosses = (y0 <= y) != (y1 <= y)
            share = np.divide(y - y0, y1 - y0, out=np.zeros(y.shape), where=crosses)
            expected ^= crosses & (x0 + share * (x1 - x0) <= x)
        on_border |= shapely.dwithin(LineString([(x0, y0), (x1, y1)]), shapely.points(x, y), 1e-6)
    try:
        found = read({"type": "Polygon", "coordinates": [corners]})
    except NoTissueError:
        found = np.zeros_like(expected)
    differs = (found ^ expected) & ~on_border  # a border through a center may go either way
    assert not differs.any()


SQUARE = [square(200, 100, 300)]
EXPECTED = np.zeros((80, 100), bool)
EXPECTED[10:40, 20:50] = True


@pytest.mark.parametrize(
    "document",
    [
        {"type": "FeatureCollection", "features": [feature(SQUARE)]},
        [feature(SQUARE)],
        feature(SQUARE),
        feature([SQUARE], kind="MultiPolygon"),
        feature(SQUARE, name=None),
        {"type": "Polygon", "coordinates": SQUARE},
        {"type": "Polygon", "coordinates": [square(200, 100, 300)[:-1]]},
        {"type": "Polygon", "coordinates": [[[*corner, 0.0] for corner in SQUARE[0]]]},
        {"type": "MultiPolygon", "coordinates": [SQUARE, SQUARE]},
        {"type": "GeometryCollection", "geometries": [{"type": "Polygon", "coordinates": SQUARE}]},
        [
            feature(SQUARE),
            {"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, 2]}},
        ],
        [feature(SQUARE), {"type": "Feature", "geometry": None, "properties": None}],
        json.dumps(feature(SQUARE)).encode(),
    ],
)
def test_every_form_qupath_writes_is_read(document: Any) -> None:
    np.testing.assert_array_equal(read(document), EXPECTED)


@pytest.mark.parametrize(
    "name", ["Ignore*", "ignore", "Exclude", "Necrosis*", {"names": ["Ignore*"]}, "plain"]
)
def test_ignored_classes_are_cut_out_whatever_their_order(name: Any) -> None:
    hole = feature([square(250, 150, 100)], name=name)
    if name == "plain":
        hole["properties"]["classification"] = "Ignore*"
    elif isinstance(name, dict):
        hole["properties"]["classification"] = name
    expected = EXPECTED.copy()
    expected[15:25, 25:35] = False
    np.testing.assert_array_equal(read([hole, feature(SQUARE)]), expected)
    np.testing.assert_array_equal(read([feature(SQUARE), hole]), expected)


def test_other_classes_and_overlaps_count_as_tissue_once() -> None:
    document = [feature(SQUARE, name="Tumor"), feature([square(200, 100, 200)], name="Stroma")]
    np.testing.assert_array_equal(read(document), EXPECTED)


def test_the_origin_is_added() -> None:
    np.testing.assert_array_equal(read(feature([square(100, 50, 300)]), (100, 50)), EXPECTED)


@pytest.mark.parametrize("document", [[], {"type": "FeatureCollection", "features": []}])
def test_an_outline_without_tissue_is_an_error(document: Any) -> None:
    with pytest.raises(NoTissueError, match=r"slide\.geojson: encloses no tissue.*1000 x 800"):
        read(document)


@pytest.mark.parametrize(
    "outside", [square(2000, 0, 50), square(-500, -500, 100), square(200, 900, 10), square(3, 3, 1)]
)
def test_an_area_beyond_the_slide_or_between_pixels_is_no_tissue(
    outside: list[list[float]],
) -> None:
    with pytest.raises(NoTissueError):
        read(feature([outside]))


def with_corner(value: Any) -> dict[str, Any]:
    return feature([[[0, 0], [100, 0], [100, value]]])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        (b"\xff\xfe\x00garbage", "not JSON"),
        ("3", "'3'"),
        ("null", "'None'"),
        ('"Polygon"', "'Polygon'"),
        ({"type": "Circle"}, "type 'Circle'"),
        ({"type": ["Polygon"]}, "expected"),
        ({"features": []}, "without a type"),
        ({"type": "FeatureCollection"}, "'features' of a FeatureCollection is 'None'"),
        ({"type": "FeatureCollection", "features": {}}, "expected a list"),
        ({"type": "Polygon"}, "'coordinates'"),
        ({"type": "Polygon", "coordinates": []}, "a polygon is"),
        ({"type": "Polygon", "coordinates": [[]]}, "a ring is"),
        ({"type": "Polygon", "coordinates": [[[0, 0], [1, 1]]]}, "at least three corners"),
        ({"type": "Polygon", "coordinates": SQUARE[0]}, "a ring is"),
        ({"type": "MultiPolygon", "coordinates": SQUARE}, "a ring is"),
        ({"type": "MultiPolygon", "coordinates": [3]}, "a polygon is '3'"),
        (feature([[[0, 0], [1, 1], [2]]]), "a ring is"),
        (with_corner("7"), "a ring is"),
        (with_corner(None), "a ring is"),
        (with_corner(10**400), "a ring is"),
        (with_corner(float("nan")), "NaN"),
        (with_corner(float("inf")), "infinity"),
        (with_corner(1e300), "beyond 1e"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 900 + "]" * 900, "."),
        ('{"type":"GeometryCollection","geometries":[' * 100_000, "nested too deeply"),
    ],
)
def test_the_error_for_other_files_names_the_file_and_a_fix(document: Any, message: str) -> None:
    with pytest.raises((FormatError, NoTissueError), match=message) as caught:
        read(document)
    assert str(caught.value).startswith("slide.geojson: ")
    assert "QuPath" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_outline_says_how_it_was_found_until_it_is_edited() -> None:
    text = add_tissue_mode(to_geojson(tissue_of(blobs(0))), "detect")
    assert read_tissue_mode(text) == "detect"
    edited = json.loads(text)
    edited["features"][0]["geometry"]["coordinates"][0][1][0] += 5
    assert read_tissue_mode(json.dumps(edited)) is None
    for other in (to_geojson(tissue_of(blobs(0))), "[]", "no JSON", '{"sacmil": 3}'):
        assert read_tissue_mode(other) is None
