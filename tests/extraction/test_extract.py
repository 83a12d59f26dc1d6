"""Extraction: the bags are what a plain loop would make, and a second run does what is missing."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from slide_maker import tissue_pixels, write_slide

from sacmil import read_bag
from sacmil.encoders import load_encoder
from sacmil.errors import OptionError, SlideError
from sacmil.extraction import Resources, Settings, extract, extract_slide
from sacmil.slides.outline import from_geojson
from sacmil.slides.pixels import read_tile
from sacmil.slides.readers import open_slide
from sacmil.slides.search import find_slides
from sacmil.slides.tiling import TileSpec, lay_tiles
from sacmil.slides.tissue import mask_downsample

SETTINGS = Settings(tiles=TileSpec(mpp=0.5, patch_size=64), dtype="float32")
CUT = "0.5mpp_64px"


def run(cohort: Path, out: Path, name: str, settings: Settings = SETTINGS, **options):
    encoders = [] if options.get("until") else [load_encoder(name)]
    resources = Resources(workers=2, threads=1, batch_size=8)
    slides = find_slides([cohort])
    return extract(
        slides, out, encoders=encoders, settings=settings, resources=resources, **options
    )


def bags(out: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(out.glob("*/features_*/*.h5"))}


def stamps(out: Path) -> dict[str, int]:
    files = [p for p in out.rglob("*") if p.is_file() and p.name != "extraction.csv"]
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in files}


def test_a_bag_is_what_a_plain_loop_makes_of_the_slide(cohort, tmp_path, encoder) -> None:
    rows = run(cohort, tmp_path / "out", encoder)
    assert [row.status for row in rows] == ["done"] * 3
    loaded = load_encoder(encoder)
    for slide_id, path in bags(tmp_path / "out").items():
        bag = read_bag(path)
        with open_slide(cohort / f"{slide_id}.tif") as slide:
            outline = (tmp_path / "out" / "tissue" / f"{slide_id}.geojson").read_text()
            tissue = from_geojson(outline, slide.size, None, mask_downsample(slide, 0.5))
            tiles = lay_tiles(tissue, 0.5, SETTINGS.tiles)
            pixels = [
                read_tile(slide, x, y, tiles.side, 64, 32, loaded.card.resample)
                for x, y in tiles.coords.tolist()
            ]
        assert np.array_equal(bag.coords, tiles.coords)
        np.testing.assert_allclose(bag.features, loaded.encode(np.stack(pixels)), atol=1e-5)
        assert (bag.mpp, bag.patch_size, bag.tile_px) == (0.5, 64, 64)
        assert bag.encoder == (loaded.card.name, loaded.hash)
        assert bag.slide_size == slide.size


def test_a_second_run_changes_nothing(cohort, tmp_path, encoder) -> None:
    run(cohort, tmp_path, encoder)
    before = stamps(tmp_path)
    rows = run(cohort, tmp_path, encoder)
    assert [row.status for row in rows] == ["done"] * 3
    assert stamps(tmp_path) == before


def test_only_the_missing_bag_is_made_again_and_it_is_the_same(cohort, tmp_path, encoder) -> None:
    run(cohort, tmp_path, encoder)
    before, lost = stamps(tmp_path), bags(tmp_path)["slide-1"]
    content = lost.read_bytes()
    lost.unlink()
    run(cohort, tmp_path, encoder)
    after = stamps(tmp_path)
    assert {name for name in after if after[name] != before[name]} == {
        str(lost.relative_to(tmp_path))
    }
    assert lost.read_bytes() == content


def test_a_damaged_bag_is_made_again(cohort, tmp_path, encoder) -> None:
    run(cohort, tmp_path, encoder)
    bag = bags(tmp_path)["slide-0"]
    content = bag.read_bytes()
    bag.write_bytes(content[: len(content) // 2])
    run(cohort, tmp_path, encoder)
    assert bag.read_bytes() == content


def test_an_edited_outline_is_taken_up_and_other_slides_are_left_alone(
    cohort, tmp_path, encoder
) -> None:
    run(cohort, tmp_path, encoder, until="tiles")
    assert not bags(tmp_path)
    run(cohort, tmp_path, encoder)
    before = stamps(tmp_path)
    square = [[0, 0], [256, 0], [256, 256], [0, 256], [0, 0]]
    drawn = {"type": "Polygon", "coordinates": [square]}
    feature = {"type": "Feature", "geometry": drawn, "properties": {}}
    (tmp_path / "tissue" / "slide-0.geojson").write_text(json.dumps([feature]))
    run(cohort, tmp_path, encoder)
    corners = {(64 * i, 64 * j) for i in range(4) for j in range(4)}
    assert set(map(tuple, read_bag(bags(tmp_path)["slide-0"]).coords.tolist())) == corners
    after = stamps(tmp_path)
    assert {name.split("/")[-1] for name in after if after[name] != before[name]} == {
        "slide-0.geojson",
        "slide-0.png",
        "slide-0.h5",
    }


def test_a_second_encoder_takes_up_the_tiles(cohort, tmp_path, encoder, make_encoder) -> None:
    run(cohort, tmp_path, encoder)
    before = stamps(tmp_path)
    run(cohort, tmp_path, make_encoder("other.onnx", width=4))
    after = stamps(tmp_path)
    assert {name: after[name] for name in before} == before
    made = [read_bag(path) for path in sorted(tmp_path.glob(f"{CUT}/features_*/slide-0.h5"))]
    assert [bag.dim for bag in made] == [6, 4]
    assert np.array_equal(made[0].coords, made[1].coords)


def test_other_weights_under_the_same_name_make_the_bag_again(
    cohort, tmp_path, encoder, make_encoder
) -> None:
    run(cohort, tmp_path, encoder)
    first = read_bag(bags(tmp_path)["slide-0"])
    make_encoder("colour.onnx", seed=1)
    run(cohort, tmp_path, encoder)
    second = read_bag(bags(tmp_path)["slide-0"])
    assert first.encoder.hash != second.encoder.hash
    assert not np.allclose(first.features, second.features)


def test_one_bad_slide_is_told_and_the_others_are_done(cohort, tmp_path, encoder) -> None:
    folder = tmp_path / "slides"
    shutil.copytree(cohort, folder)
    whole = (cohort / "slide-0.tif").read_bytes()
    (folder / "cut.tif").write_bytes(whole[: len(whole) // 3])
    (folder / "words.svs").write_text("this is not a slide")
    (folder / "empty.tiff").touch()
    write_slide(folder / "silent.tif", tissue_pixels(512, 512, 0), mpp=None)
    white = np.full((512, 512, 3), 245, np.uint8)
    write_slide(folder / "white.tif", white, mpp=0.5)
    rows = {row.slide_id: row for row in run(folder, tmp_path / "out", encoder)}
    failed = {name for name, row in rows.items() if row.status == "failed"}
    assert failed == {"cut", "words", "empty", "silent", "white"}
    assert "--slide-mpp" in rows["silent"].reason
    assert "tissue" in rows["white"].reason
    assert set(bags(tmp_path / "out")) == {"slide-0", "slide-1", "slide-2"}
    with (tmp_path / "out" / "extraction.csv").open() as file:
        table = {row["slide_id"]: row for row in csv.DictReader(file)}
    assert {name for name, row in table.items() if row["reason"]} == failed
    drawn = json.loads((tmp_path / "out" / "tissue" / "white.geojson").read_text())
    assert drawn["features"] == [], "there is a file to draw tissue into"


def test_a_slide_that_takes_too_long_is_given_up(cohort, tmp_path, encoder) -> None:
    from dataclasses import replace

    rows = run(cohort, tmp_path, encoder, replace(SETTINGS, slide_limit_s=0.01))
    assert [row.reason for row in rows] == ["took longer than 0.01 s"] * 3


def test_white_tiles_can_be_left_out(cohort, tmp_path, encoder) -> None:
    from dataclasses import replace

    settings = replace(SETTINGS, tiles=TileSpec(mpp=0.5, patch_size=64, min_tissue=0.0))
    run(cohort, tmp_path / "all", encoder, settings)
    run(cohort, tmp_path / "some", encoder, replace(settings, drop_white=True))
    fewer = 0
    for slide_id, path in bags(tmp_path / "all").items():
        every, some = read_bag(path), read_bag(bags(tmp_path / "some")[slide_id])
        places = set(map(tuple, every.coords.tolist()))
        assert set(map(tuple, some.coords.tolist())) <= places
        fewer += len(every) - len(some)
    assert fewer


def test_features_can_be_stored_in_half_precision(cohort, encoder) -> None:
    slide = cohort / "slide-1.tif"
    from dataclasses import replace

    loaded = load_encoder(encoder)
    half = extract_slide(slide, encoder=loaded, settings=replace(SETTINGS, dtype="float16"))
    whole = extract_slide(slide, encoder=loaded, settings=SETTINGS)
    assert half.features.dtype == np.float16
    np.testing.assert_array_equal(half.features, whole.features.astype(np.float16))


def test_one_slide_from_python_is_the_bag_the_folder_has(cohort, tmp_path, encoder) -> None:
    run(cohort, tmp_path, encoder)
    kept = read_bag(bags(tmp_path)["slide-2"])
    bag = extract_slide(
        cohort / "slide-2.tif",
        encoder=encoder,
        settings=SETTINGS,
        resources=Resources(workers=1, threads=1, batch_size=8),
    )
    assert np.array_equal(bag.features, kept.features)
    assert np.array_equal(bag.coords, kept.coords)
    assert bag.provenance == kept.provenance


def test_a_slide_that_fails_in_python_raises_its_reason(tmp_path, encoder) -> None:
    write_slide(tmp_path / "silent.tif", tissue_pixels(512, 512, 0), mpp=None)
    with pytest.raises(SlideError, match="states no µm per pixel"):
        extract_slide(tmp_path / "silent.tif", encoder=encoder)
    bag = extract_slide(
        tmp_path / "silent.tif", encoder=encoder, slide_mpp=0.25, mpp=0.5, patch_size=64
    )
    assert (bag.patch_size, bag.mpp) == (128, 0.25)


@pytest.mark.parametrize("wrong", [{"dtype": "int8"}, {"slide_limit_s": 0}, {"tile_limit_s": -1}])
def test_settings_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(OptionError):
        Settings(**wrong)
