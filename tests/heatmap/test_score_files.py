"""GeoJSON, read back and compared with what QuPath parses."""

from __future__ import annotations

import gzip
import json
import uuid
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacmil.errors import RunError
from sacmil.heatmap import normalize_scores, safe_file_name, write_geojson
from sacmil.heatmap.colors import DIVERGING_COLOR_SCALE, apply_color_scale
from sacmil.results import InstanceScores

few = settings(deadline=None, max_examples=30, derandomize=True)


@pytest.fixture
def scores() -> InstanceScores:
    random = np.random.default_rng(0)
    coords = random.integers(1000, 90_000, (37, 2))
    return InstanceScores(coords, 256, random.normal(size=37).astype(np.float32))


def read(path: Path) -> dict:
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)


def write(path: Path, scores: InstanceScores, normalization: str = "rank", **options) -> list[dict]:
    values = normalize_scores(scores.scores, normalization)
    write_geojson(path, scores, values, normalization=normalization, **options)
    found = read(path)
    assert found["type"] == "FeatureCollection"
    return found["features"]


def test_every_feature_is_a_tile_qupath_reads(tmp_path, scores) -> None:
    features = write(tmp_path / "a.geojson.gz", scores)
    assert len(features) == 37
    for feature in features:
        assert set(feature) == {"type", "id", "geometry", "properties"}
        assert feature["type"] == "Feature"
        assert str(uuid.UUID(feature["id"])) == feature["id"]
        (ring,) = feature["geometry"]["coordinates"]
        assert feature["geometry"]["type"] == "Polygon"
        assert len(ring) == 5
        assert ring[0] == ring[-1]
        properties = feature["properties"]
        assert properties["objectType"] == "tile"
        assert "classification" not in properties  # one without a colour would not parse
        assert len(properties["color"]) == 3
        assert all(isinstance(value, int) and 0 <= value <= 255 for value in properties["color"])
        assert all(isinstance(v, int | float) for v in properties["measurements"].values())
    assert len({feature["id"] for feature in features}) == 37


def test_positions_measurements_and_colors_are_those_of_the_tiles(tmp_path, scores) -> None:
    ranks = normalize_scores(scores.scores, "rank")
    for index, feature in enumerate(write(tmp_path / "a.geojson", scores)):
        x, y = scores.coords[index].tolist()
        ring = [[x, y], [x + 256, y], [x + 256, y + 256], [x, y + 256], [x, y]]
        assert feature["geometry"]["coordinates"] == [ring]
        measured = feature["properties"]["measurements"]
        assert np.float32(measured["score"]) == scores.scores[index]
        assert measured["score (rank)"] == pytest.approx(ranks[index], abs=1e-8)
        assert (
            feature["properties"]["color"]
            == apply_color_scale(ranks[index : index + 1])[0].tolist()
        )


def test_diverging_scores_are_red_above_zero_and_blue_below(tmp_path, scores) -> None:
    largest = np.abs(scores.scores).max()
    for index, feature in enumerate(write(tmp_path / "a.geojson", scores, "diverging")):
        position = 0.5 + scores.scores[[index]].astype(float) / largest / 2
        expected = apply_color_scale(position, DIVERGING_COLOR_SCALE)[0]
        assert feature["properties"]["color"] == expected.tolist()
        measured = feature["properties"]["measurements"]["score (diverging)"]
        assert measured == pytest.approx(scores.scores[index] / largest, abs=1e-6)


def test_slide_bounds_are_subtracted(tmp_path, scores) -> None:
    plain = write(tmp_path / "a.geojson", scores)
    moved = write(tmp_path / "b.geojson", scores, bounds_origin=(1000, 300))
    for one, other in zip(plain, moved, strict=True):
        shift = np.subtract(one["geometry"]["coordinates"], other["geometry"]["coordinates"])
        assert (shift == (1000, 300)).all()


def test_ids_differ_between_slides_and_stay_the_same_for_one(tmp_path, scores) -> None:
    ids = [
        {feature["id"] for feature in write(tmp_path / "a.geojson", scores, slide_id=name)}
        for name in ("a", "b", "a")
    ]
    assert ids[0] == ids[2]
    assert not ids[0] & ids[1]


def test_raw_scores_are_measured_once(tmp_path, scores) -> None:
    assert set(write(tmp_path / "a.geojson", scores, "raw")[0]["properties"]["measurements"]) == {
        "score"
    }


def test_any_name_of_a_measurement_survives(tmp_path, scores) -> None:
    names = ['100% "IDC"', "%s \\ \n", "Ж"]
    features = write(
        tmp_path / "a.geojson", scores, measurements={name: scores.scores for name in names}
    )
    assert list(features[0]["properties"]["measurements"]) == names


def test_more_tiles_than_are_written_at_once_stay_in_order(tmp_path) -> None:
    count = 10_001
    coords = np.stack([np.arange(count), np.zeros(count, int)], axis=1)
    many = InstanceScores(coords, 1, np.arange(count, dtype=np.float32))
    features = write(tmp_path / "a.geojson.gz", many)
    assert [f["properties"]["measurements"]["score"] for f in features] == list(range(count))


def test_tiles_off_the_pixel_grid_keep_their_fractions(tmp_path) -> None:
    one = InstanceScores(np.array([[0.5, 1.25]]), 10.5, np.ones(1, np.float32))
    (feature,) = write(tmp_path / "a.geojson", one)
    assert feature["geometry"]["coordinates"][0][2] == [11.0, 11.75]


def test_a_measurement_that_is_not_finite_is_rejected_and_leaves_no_file(tmp_path, scores) -> None:
    with pytest.raises(RunError, match="finite"):
        write(tmp_path / "a.geojson", scores, measurements={"score": np.full(37, np.nan)})
    assert list(tmp_path.iterdir()) == []


def test_the_same_scores_are_the_same_bytes(tmp_path, scores) -> None:
    for name in ("a.geojson.gz", "b.geojson.gz"):
        write(tmp_path / name, scores)
    assert (tmp_path / "a.geojson.gz").read_bytes() == (tmp_path / "b.geojson.gz").read_bytes()


# Names of slides in file names.


@few
@given(st.text(min_size=1))
def test_any_name_stays_in_its_folder_and_can_be_written(text: str) -> None:
    name = safe_file_name(text)
    assert Path("out", f"{name}_overlay.png").parent == Path("out")
    assert name not in {"", ".", ".."}
    assert not set(name) & set('/\\:*?"<>|\0\n')
    assert len(name.encode()) < 120


@few
@given(st.text(min_size=1), st.text(min_size=1))
def test_different_slides_have_different_files(one: str, other: str) -> None:
    assert (safe_file_name(one) == safe_file_name(other)) == (one == other)
