"""Extraction: bags equal those of a plain loop, and a second run only does what is missing."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from inline_workers import use_inline_workers
from slide_maker import tissue_pixels, write_slide
from tiny_encoder import write_encoder

from sacmil import read_bag
from sacmil.atomic import exclusive
from sacmil.encoders import load_encoder
from sacmil.errors import OptionError, SacMILError, SlideError
from sacmil.extraction import (
    ExtractionResources,
    ExtractionSettings,
    extract_slide,
    extract_slides,
    table,
)
from sacmil.extraction.pipeline import Pipeline, open_pipeline
from sacmil.extraction.slide_request import (
    EncoderInfo,
    FileStamp,
    SlideRequest,
    make_encoder_info,
)
from sacmil.slides.outline import from_geojson
from sacmil.slides.pixels import read_tile
from sacmil.slides.readers import open_slide
from sacmil.slides.resolution import SlideResolutions
from sacmil.slides.search import find_slides
from sacmil.slides.tiling import TileSpec, lay_tiles
from sacmil.slides.tissue import mask_downsample

SETTINGS = ExtractionSettings(tiles=TileSpec(mpp=0.5, patch_size=64), dtype="float32")
CUT = "0.5mpp_64px"
UNCOMPARED = ("extraction.csv", ".extraction.json")
"""Files that hold seconds and times."""


@pytest.fixture
def worker_processes() -> None:
    """Requested by tests that read slides in processes, as users do."""


@pytest.fixture(autouse=True)
def _inline_workers_elsewhere(request: pytest.FixtureRequest) -> None:
    if "worker_processes" not in request.fixturenames:
        request.getfixturevalue("inline_workers")


def run(cohort: Path, out: Path, name: str, settings: ExtractionSettings = SETTINGS, **options):
    encoders = [] if options.get("until") else [load_encoder(name)]
    resources = ExtractionResources(workers=2, threads=1, batch_size=8)
    slides = find_slides([cohort])
    return extract_slides(
        slides, out, encoders=encoders, settings=settings, resources=resources, **options
    )


def bags(out: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(out.glob("*/features_*/*.h5"))}


def stamps(out: Path) -> dict[str, int]:
    files = [p for p in out.rglob("*") if p.is_file() and p.name not in UNCOMPARED]
    return {str(path.relative_to(out)): path.stat().st_mtime_ns for path in files}


@pytest.fixture(scope="module")
def finished(cohort: Path, tmp_path_factory: pytest.TempPathFactory):
    """An output folder in which the cohort is done, and its rows."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        use_inline_workers(patch)
        return folder / "out", run(cohort, folder / "out", write_encoder(folder / "colour.onnx"))


@pytest.fixture
def out(finished, tmp_path: Path) -> Path:
    """A copy of the finished folder."""
    return shutil.copytree(finished[0], tmp_path / "out")


def test_a_bag_is_what_a_plain_loop_makes_of_the_slide(
    cohort, tmp_path, encoder, worker_processes
) -> None:
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


def test_a_second_run_changes_nothing_even_if_it_opens_the_slides(cohort, out, encoder) -> None:
    before = stamps(out)
    (out / ".extraction.json").unlink()
    rows = run(cohort, out, encoder)
    assert [row.status for row in rows] == ["done"] * 3
    assert stamps(out) == before


def test_a_rerun_opens_no_slide_that_is_finished(
    cohort, finished, out, encoder, monkeypatch
) -> None:
    before = finished[1]
    monkeypatch.setattr(Pipeline, "_start_job", lambda *_: pytest.fail("a slide was opened"))
    after = run(cohort, out, encoder)
    assert after == [replace(row, seconds="0.0") for row in before]


def test_only_the_missing_bag_is_made_again_and_it_is_the_same(cohort, out, encoder) -> None:
    before, lost = stamps(out), bags(out)["slide-1"]
    content = lost.read_bytes()
    lost.unlink()
    run(cohort, out, encoder)
    after = stamps(out)
    assert {name for name in after if after[name] != before[name]} == {str(lost.relative_to(out))}
    assert lost.read_bytes() == content


def test_a_damaged_bag_is_made_again(cohort, out, encoder) -> None:
    bag = bags(out)["slide-0"]
    content = bag.read_bytes()
    bag.write_bytes(content[: len(content) // 2])
    run(cohort, out, encoder)
    assert bag.read_bytes() == content


def test_an_edited_outline_changes_its_slide_and_no_other(cohort, tmp_path, encoder) -> None:
    run(cohort, tmp_path, encoder, until="tiles")
    assert not bags(tmp_path)
    run(cohort, tmp_path, encoder)
    before = stamps(tmp_path)
    square = [[0, 0], [256, 0], [256, 256], [0, 256], [0, 0]]
    polygon = {"type": "Polygon", "coordinates": [square]}
    feature = {"type": "Feature", "geometry": polygon, "properties": {}}
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


def test_a_second_encoder_uses_the_same_tiles(cohort, out, make_encoder) -> None:
    before = stamps(out)
    run(cohort, out, make_encoder("other.onnx", width=4))
    after = stamps(out)
    assert {name: after[name] for name in before} == before
    both = [read_bag(path) for path in sorted(out.glob(f"{CUT}/features_*/slide-0.h5"))]
    assert [bag.dim for bag in both] == [6, 4]
    assert np.array_equal(both[0].coords, both[1].coords)


def test_other_weights_under_the_same_name_make_the_bag_again(cohort, out, make_encoder) -> None:
    first = read_bag(bags(out)["slide-0"])
    run(cohort, out, make_encoder("colour.onnx", seed=1))
    second = read_bag(bags(out)["slide-0"])
    assert first.encoder.hash != second.encoder.hash
    assert not np.allclose(first.features, second.features)


def test_bad_slides_fail_with_a_reason_and_the_others_are_done(cohort, tmp_path, encoder) -> None:
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
    assert "`slide_mpp=0.25`" in rows["silent"].reason
    assert "nothing on the slide looks like tissue" in rows["white"].reason
    assert set(bags(tmp_path / "out")) == {"slide-0", "slide-1", "slide-2"}
    with (tmp_path / "out" / "extraction.csv").open() as file:
        table = {row["slide_id"]: row for row in csv.DictReader(file)}
    assert {name for name, row in table.items() if row["reason"]} == failed
    outline = json.loads((tmp_path / "out" / "tissue" / "white.geojson").read_text())
    assert outline["features"] == [], "there is a file to draw tissue into"


def test_a_slide_that_takes_too_long_fails(cohort, tmp_path, encoder, worker_processes) -> None:
    rows = run(cohort, tmp_path, encoder, replace(SETTINGS, slide_limit_s=0.01))
    assert [row.reason for row in rows] == ["took longer than 0.01 s"] * 3


def test_white_tiles_can_be_left_out(cohort, encoder) -> None:
    settings = replace(SETTINGS, tiles=TileSpec(mpp=0.5, patch_size=64, min_tissue=0.0))
    every, some = (
        extract_slide(cohort / "slide-0.tif", encoder=encoder, settings=chosen)
        for chosen in (settings, replace(settings, drop_white=True))
    )
    assert set(map(tuple, some.coords.tolist())) < set(map(tuple, every.coords.tolist()))


def test_features_can_be_stored_in_half_precision(cohort, encoder) -> None:
    slide = cohort / "slide-1.tif"
    loaded = load_encoder(encoder)
    half = extract_slide(slide, encoder=loaded, settings=replace(SETTINGS, dtype="float16"))
    whole = extract_slide(slide, encoder=loaded, settings=SETTINGS)
    assert half.features.dtype == np.float16
    np.testing.assert_array_equal(half.features, whole.features.astype(np.float16))


def test_one_slide_from_python_is_the_bag_the_folder_has(cohort, out, encoder) -> None:
    stored = read_bag(bags(out)["slide-2"])
    bag = extract_slide(
        cohort / "slide-2.tif",
        encoder=encoder,
        settings=SETTINGS,
        resources=ExtractionResources(workers=1, threads=1, batch_size=8),
    )
    assert np.array_equal(bag.features, stored.features)
    assert np.array_equal(bag.coords, stored.coords)
    assert bag.provenance == stored.provenance


def test_a_slide_that_fails_in_python_raises_its_reason(tmp_path, encoder) -> None:
    write_slide(tmp_path / "silent.tif", tissue_pixels(512, 512, 0), mpp=None)
    with pytest.raises(SlideError, match="states no µm per pixel"):
        extract_slide(tmp_path / "silent.tif", encoder=encoder)
    bag = extract_slide(
        tmp_path / "silent.tif", encoder=encoder, slide_mpp=0.25, mpp=0.5, patch_size=64
    )
    assert (bag.patch_size, bag.mpp) == (128, 0.25)


def copy_one(cohort: Path, folder: Path, name: str, source: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(cohort / source, folder / name)
    return folder


def test_another_resolution_makes_the_bag_again(cohort, tmp_path, encoder) -> None:
    slides = copy_one(cohort, tmp_path / "slides", "a.tif", "slide-0.tif")
    for mpp in (0.25, 0.26):
        stated = replace(SETTINGS, resolutions=SlideResolutions(everywhere=mpp))
        run(slides, tmp_path / "out", encoder, stated)
        assert read_bag(bags(tmp_path / "out")["a"]).mpp == mpp


def test_another_slide_of_the_same_name_is_rejected(cohort, tmp_path, encoder) -> None:
    out = tmp_path / "out"
    run(copy_one(cohort, tmp_path / "one", "a.tif", "slide-0.tif"), out, encoder)
    before = bags(out)["a"].read_bytes()
    (row,) = run(copy_one(cohort, tmp_path / "two", "a.tif", "slide-1.tif"), out, encoder)
    assert "another slide of this name" in row.reason
    assert bags(out)["a"].read_bytes() == before
    (row,) = run(copy_one(cohort, tmp_path / "copy", "a.tif", "slide-0.tif"), out, encoder)
    assert row.status == "done", "the same file elsewhere is the same slide"


def test_the_preview_follows_an_edited_outline(cohort, tmp_path, encoder) -> None:
    slides = copy_one(cohort, tmp_path / "slides", "a.tif", "slide-0.tif")
    run(slides, tmp_path / "out", encoder, until="tissue")
    preview, outline = (tmp_path / "out" / "tissue" / f"a.{kind}" for kind in ("png", "geojson"))
    before = preview.read_bytes()
    square = [[0, 0], [300, 0], [300, 300], [0, 300], [0, 0]]
    outline.write_text(json.dumps({"type": "Polygon", "coordinates": [square]}))
    run(slides, tmp_path / "out", encoder, until="tissue")
    assert preview.read_bytes() != before


def test_a_failing_encoder_fails_its_slide_and_the_next_is_done(cohort, encoder) -> None:
    loaded, calls = load_encoder(encoder), []

    class FailingOnce(type(loaded)):
        def encode(self, tiles):
            calls.append(len(tiles))
            if len(calls) == 1:
                raise RuntimeError("CUDA out of memory")
            return super().encode(tiles)

    loaded.__class__ = FailingOnce
    chosen = ExtractionResources(workers=1, threads=1, batch_size=1000)
    requests = [
        SlideRequest(
            path=path, settings=SETTINGS, encoder=make_encoder_info(loaded), batch_size=1000
        )
        for path in find_slides([cohort])
    ]
    with open_pipeline([loaded], chosen) as pipeline:
        first = list(pipeline.run(requests[:2]))
        again = list(pipeline.run(requests[2:]))
    assert "`batch_size`" in first[0].failure
    assert first[1].failure is None
    assert again[0].bag is not None


def test_two_extractions_do_not_work_in_one_folder(cohort, tmp_path, encoder) -> None:
    with exclusive(tmp_path), pytest.raises(SacMILError, match="another extraction is running"):
        run(cohort, tmp_path, encoder)
    assert len(run(cohort, tmp_path, encoder, until="tissue")) == 3


def test_the_table_has_a_row_per_cut_and_drops_failures_that_were_fixed(
    cohort, tmp_path, encoder
) -> None:
    (tmp_path / "slides").mkdir()
    write_slide(tmp_path / "slides" / "a.tif", tissue_pixels(1024, 768, 0), mpp=None)
    slides, out = tmp_path / "slides", tmp_path / "out"
    run(slides, out, encoder, until="tissue")
    for size in (64, 128):
        settings = replace(
            SETTINGS,
            tiles=TileSpec(mpp=0.5, patch_size=size),
            resolutions=SlideResolutions(everywhere=0.5),
        )
        run(slides, out, encoder, settings)
    with (out / "extraction.csv").open() as file:
        rows = [(row["status"], row["cut"]) for row in csv.DictReader(file)]
    assert rows == [("done", "0.5mpp_64px"), ("done", "0.5mpp_128px")]


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes there")
def test_a_name_that_is_not_utf8_fails_and_the_others_are_done(cohort, tmp_path, encoder) -> None:
    folder = tmp_path / "slides"
    shutil.copytree(cohort, folder)
    (folder / "slide-0.tif").rename(folder / os.fsdecode(b"caf\xe9.tif"))
    rows = run(folder, tmp_path / "out", encoder)
    assert [row.status for row in rows].count("done") == 2
    (failed,) = [row for row in rows if row.status == "failed"]
    assert "is not UTF-8" in failed.reason


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"threads": -3}, {"batch_size": -3}])
def test_resources_below_zero_are_rejected(wrong) -> None:
    with pytest.raises(OptionError, match="or more"):
        ExtractionResources(**wrong)


@pytest.mark.parametrize("mpp", [-1, 0, 250, "0.25", True])
def test_an_impossible_resolution_is_rejected_from_python(cohort, encoder, mpp) -> None:
    with pytest.raises(SlideError):
        extract_slide(cohort / "slide-0.tif", encoder=encoder, slide_mpp=mpp)


@pytest.mark.parametrize("wrong", [{"dtype": "int8"}, {"slide_limit_s": 0}, {"tile_limit_s": -1}])
def test_settings_out_of_range_are_rejected(wrong) -> None:
    with pytest.raises(OptionError):
        ExtractionSettings(**wrong)


PIXELS = replace(SETTINGS, tiles=TileSpec(mpp=None, patch_size=115))


@pytest.fixture
def fields(tmp_path: Path) -> Path:
    """Two plain images without any µm per pixel: one all tissue, one half bare glass."""
    from PIL import Image

    folder = tmp_path / "fields"
    folder.mkdir()
    covered = np.random.default_rng(0).integers(120, 200, (460, 700, 3), np.uint8)
    covered[..., 1] -= 50
    half = covered.copy()
    half[:, 300:] = (240, 238, 240)
    for name, pixels in {"covered": covered, "half": half}.items():
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return folder


def test_images_without_microns_are_cut_by_pixels_and_their_rows_say_so(
    fields, tmp_path, encoder
) -> None:
    out = tmp_path / "out"
    rows = run(fields, out, encoder, PIXELS)
    assert [(row.status, row.mpp, row.tissue) for row in rows] == [
        ("done", "unknown", "all"),
        ("done", "unknown", "detect"),
    ]
    assert [row.tiles for row in rows] == ["24", "12"]
    bag = read_bag(bags(out)["covered"])
    assert (bag.mpp, bag.patch_size, bag.patch_size_px, bag.tile_px) == (None, 115, 115, 115)
    assert (bag.provenance["tissue"], bag.provenance["tissue_mode"]) == ("all", "auto")
    before = stamps(out)
    run(fields, out, encoder, PIXELS)
    assert stamps(out) == before


def test_another_tissue_mode_replaces_found_outlines_and_no_drawn_ones(fields, tmp_path) -> None:
    out = tmp_path / "out"
    run(fields, out, "", PIXELS, until="tiles")
    outline = out / "tissue" / "covered.geojson"
    square = [[0, 0], [230, 0], [230, 230], [0, 230], [0, 0]]
    outline.write_text(json.dumps({"type": "Polygon", "coordinates": [square]}))
    rows = run(fields, out, "", replace(PIXELS, tissue_mode="all"), until="tiles")
    assert [(row.tissue, row.tiles) for row in rows] == [("outline", "4"), ("all", "24")]


def test_pixels_and_microns_of_slides_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="counted in pixels"):
        replace(PIXELS, resolutions=SlideResolutions(everywhere=0.5))


def test_digests_of_finished_slides_do_not_change_with_names_in_the_code(monkeypatch) -> None:
    monkeypatch.setattr(table, "__version__", "0.1.0")
    encoder = EncoderInfo(
        "lite0", "0123456789abcdef", 224, "bicubic", "torch", "cpu", "float32", can_resize=False
    )
    request = SlideRequest(
        path=Path("/slides/a.svs"), settings=ExtractionSettings(), encoder=encoder
    )
    stamps = (FileStamp(1, 2), FileStamp(3, 4))
    digest = table._compute_digest(request, stamps)
    assert digest == "d649d8ad0e696b634efe8c94439d42be"
