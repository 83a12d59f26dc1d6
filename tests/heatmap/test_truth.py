"""The ground truth of a slide, in every file format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from sacmil.errors import CohortError
from sacmil.heatmap.canvas import Viewport, make_truth_mask, read_truth
from sacmil.results import InstanceScores

SQUARE = [[0, 0], [60, 0], [60, 60], [0, 60]]
HOLE = [[20, 20], [40, 20], [40, 40], [20, 40]]
VIEW = Viewport(0, 0, 10, 10, 10)
EXPECTED = np.zeros((10, 10), bool)
EXPECTED[:6, :6] = True
EXPECTED[2:4, 2:4] = False
NOWHERE = InstanceScores(np.zeros((1, 2), int), 10, np.zeros(1, np.float32))


def asap(folder: Path) -> Path:
    def annotation(group: str, points) -> str:
        lines = "".join(
            f'<Coordinate Order="{i}" X="{x}" Y="{y}"/>' for i, (x, y) in enumerate(points)
        )
        return (
            f'<Annotation Type="Polygon" PartOfGroup="{group}"><Coordinates>{lines}'
            "</Coordinates></Annotation>"
        )

    text = annotation("_0", SQUARE) + annotation("_2", HOLE)
    path = folder / "slide.xml"
    path.write_text(f"<ASAP_Annotations><Annotations>{text}</Annotations></ASAP_Annotations>")
    return path


def geojson(folder: Path) -> Path:
    geometry = {"type": "Polygon", "coordinates": [[*SQUARE, SQUARE[0]], [*HOLE, HOLE[0]]]}
    feature = {"type": "Feature", "geometry": geometry, "properties": {}}
    path = folder / "slide.geojson"
    point = {"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, 2]}}
    whole = {"type": "FeatureCollection", "features": [point, feature]}
    path.write_text(json.dumps(whole))
    return path


def outlines(folder: Path) -> Path:
    path = folder / "all.json.gz"
    found = {"slide": {"positive": [SQUARE], "negative": [HOLE]}}
    path.write_bytes(gzip.compress(json.dumps(found).encode()))
    return path


@pytest.mark.parametrize("write", [asap, geojson, outlines])
def test_every_file_format_gives_the_same_truth(tmp_path, write) -> None:
    found = read_truth(write(tmp_path), "slide")
    mask = make_truth_mask(found, NOWHERE, VIEW)
    assert (mask != EXPECTED).mean() <= 0.1  # pixels on a line may be either


def test_labels_are_the_tiles_themselves() -> None:
    coords = np.array([[0, 0], [50, 50], [80, 10]])
    scores = InstanceScores(coords, 20, np.zeros(3, np.float32))
    mask = make_truth_mask(np.array([1, 0, 2]), scores, VIEW)
    expected = np.zeros((10, 10), bool)
    expected[:2, :2] = expected[1:3, 8:] = True
    assert (mask == expected).all()


def test_in_a_folder_the_file_named_after_the_slide_is_read(tmp_path) -> None:
    asap(tmp_path)
    assert read_truth(tmp_path, "slide") is not None
    assert read_truth(tmp_path, "other") is None


def test_a_hostile_name_reads_nothing_outside_the_folder(tmp_path) -> None:
    asap(tmp_path)
    inner = tmp_path / "inner"
    inner.mkdir()
    assert read_truth(inner, "../slide") is None
    assert read_truth(inner, str(tmp_path / "slide")) is None


def test_geojson_counts_from_where_viewers_crop(tmp_path) -> None:
    moved = read_truth(geojson(tmp_path), "slide", bounds_origin=(1000, 500))
    assert moved.positive[0].min(axis=0).tolist() == [1000, 500]


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '{"type": "Feature"}', '{"type": "Polygon", "coordinates": [[["a", 1]]]}', "7"],
)
def test_an_invalid_file_is_one_error_with_its_name(tmp_path, text: str) -> None:
    path = tmp_path / "a.geojson"
    path.write_text(text)
    with pytest.raises(CohortError, match=r"a\.geojson"):
        read_truth(path, "slide")


def test_labels_of_another_number_of_tiles_are_rejected() -> None:
    with pytest.raises(CohortError, match="2 labels for 1 tiles"):
        make_truth_mask(np.array([1, 0]), NOWHERE, VIEW)
