"""The API returns what app.py documents."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asgi_caller import fetch, fetch_async
from PIL import Image
from results_maker import CLASSES, MODELS, SIZE, tile_scores
from slide_maker import tissue_pixels

from sacmil.heatmap.colors import COLOR_SCALE
from sacmil.results import read_results
from sacmil.viewer import documents
from sacmil.viewer.content import ResultsApi
from sacmil.viewer.workers import WorkQueue


def number_slides(made: Path) -> dict[str, int]:
    return {slide.slide_id: n for n, slide in enumerate(read_results(made).slides)}


def test_the_list_matches_results_json(app, made) -> None:
    document, known = fetch(app, "/api/results").json(), read_results(made)
    assert document["classes"] == list(CLASSES)
    assert [model["name"] for model in document["models"]] == list(MODELS)
    assert document["models"][0]["members"] == 3
    assert document["title"] == "results"
    assert document["colors"] == COLOR_SCALE.tolist()
    assert (document["task"], document["has_classes"]) == ("classification", True)
    for key in ("levels", "choices", "score_names"):
        assert document[key] == list(CLASSES)
    for slide, expected in zip(document["slides"], known.slides, strict=True):
        assert (slide["slide_id"], slide["label"]) == (expected.slide_id, expected.label)
        assert (slide["mpp"], tuple(slide["size"])) == (expected.mpp, expected.size)
        for shown, stored in zip(slide["predictions"], expected.answers, strict=True):
            assert document["models"][shown["model"]]["name"] == stored.model
            assert tuple(shown["values"]) == stored.values
            assert shown["predicted"] == CLASSES[int(np.argmax(stored.values))]
            assert shown["score_name"] == shown["predicted"]
            assert shown["has_scores"] == (stored.scores is not None)


def test_the_list_knows_what_is_there_without_opening_a_slide(app, made) -> None:
    slides = {slide["slide_id"]: slide for slide in fetch(app, "/api/results").json()["slides"]}
    assert slides["tumour-1"]["zoomable"]
    assert slides["tumour-1"]["truth"]
    assert not slides["tumour-1"]["thumbnail"]
    assert slides["thumbnail-only"]["thumbnail"]
    for name in ("bag-only", "thumbnail-only"):
        assert not slides[name]["zoomable"]
        assert "with the slide folder of this slide" in slides[name]["reason"]


def test_a_slide_lists_its_size_and_levels(app, made) -> None:
    document = fetch(app, f"/api/slides/{number_slides(made)['tumour-1']}").json()
    levels = int(np.ceil(np.log2(max(SIZE)))) + 1
    assert document == {
        "size": list(SIZE),
        "mpp": 0.5,
        "tile": 256,
        "levels": levels,
        "zoomable": True,
        "reason": None,
        "bounds": None,
    }


@pytest.mark.parametrize("name", ["bag-only", "thumbnail-only", "damaged"])
def test_a_slide_that_cannot_be_opened_says_why(app, made, name: str) -> None:
    number = number_slides(made)[name]
    document = fetch(app, f"/api/slides/{number}").json()
    assert (document["zoomable"], document["levels"]) == (False, 0)
    assert len(document["reason"]) > 20
    tile = fetch(app, f"/api/slides/{number}/tiles/0/0_0.jpg")
    assert tile.status == 422
    assert tile.json() == {"error": document["reason"]}


def test_tiles_of_the_finest_level_are_the_slide(app, made) -> None:
    number = number_slides(made)["tumour-1"]
    level = fetch(app, f"/api/slides/{number}").json()["levels"] - 1
    shown = assemble_level(app, number, level, SIZE)
    assert np.abs(shown - tissue_pixels(*SIZE, seed=3).astype(float)).mean() < 4


def assemble_level(app: Any, number: int, level: int, size: tuple[int, int]) -> np.ndarray:
    width, height = size
    whole = np.zeros((height, width, 3))
    for y in range(-(-height // 256)):
        for x in range(-(-width // 256)):
            reply = fetch(app, f"/api/slides/{number}/tiles/{level}/{x}_{y}.jpg")
            assert reply.headers["content-type"] == "image/jpeg"
            tile = np.asarray(Image.open(io.BytesIO(reply.body)))
            area = whole[256 * y : 256 * y + 256, 256 * x : 256 * x + 256]
            assert tile.shape == area.shape
            area[...] = tile
    return whole


def test_every_level_has_the_tiles_deep_zoom_expects_and_no_more(app, made) -> None:
    number = number_slides(made)["tumour-1"]
    levels = fetch(app, f"/api/slides/{number}").json()["levels"]
    for level in range(levels):
        width, height = (-(-side // 2 ** (levels - 1 - level)) for side in SIZE)
        assemble_level(app, number, level, (width, height))
        columns, rows = -(-width // 256), -(-height // 256)
        for x, y in ((columns, 0), (0, rows), (10**8, 10**8)):
            assert fetch(app, f"/api/slides/{number}/tiles/{level}/{x}_{y}.jpg").status == 404
    assert (width, height) == SIZE
    assert fetch(app, f"/api/slides/{number}/tiles/{levels}/0_0.jpg").status == 404


@pytest.mark.parametrize("model", MODELS)
def test_scores_arrive_as_exact_as_they_are(app, made, model: str) -> None:
    target = f"/api/slides/{number_slides(made)['bag-only']}/scores/{MODELS.index(model)}"
    document, known = fetch(app, target).json(), tile_scores(model)
    assert document["patch_size"] == known.patch_size
    np.testing.assert_array_equal(np.stack([document["x"], document["y"]], axis=1), known.coords)
    np.testing.assert_array_equal(np.float32(document["scores"]), known.scores)
    for c, name in enumerate(CLASSES):
        np.testing.assert_array_equal(
            np.float32(document["class_scores"][name]), known.class_scores[:, c]
        )
    assert (document["low"], document["high"]) == (min(document["scores"]), max(document["scores"]))


def test_json_is_gzipped_only_for_clients_that_accept_it(app, made) -> None:
    target = f"/api/slides/{number_slides(made)['bag-only']}/scores/0"
    plain = fetch(app, target)
    packed = fetch(app, target, headers={"accept-encoding": "gzip, br"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body


def test_truth_and_thumbnail_arrive_as_they_lie_in_the_folder(app, made) -> None:
    numbers = number_slides(made)
    truth = fetch(app, f"/api/slides/{numbers['tumour-1']}/truth")
    assert truth.json() == json.loads((made / "truth/tumour-1.geojson").read_text())
    picture = fetch(app, f"/api/slides/{numbers['thumbnail-only']}/thumbnail")
    assert picture.headers["content-type"] == "image/png"
    assert picture.body == (made / "thumbnails/thumbnail-only.png").read_bytes()


@pytest.mark.parametrize(
    "target",
    [
        "/api/slides/99",
        "/api/slides/-1",
        "/api/slides/+1",
        "/api/slides/1.0",
        "/api/slides/%D9%A1",  # an Arabic one
        "/api/slides/" + "9" * 3000,
        "/api/slides/0/",
        "/api/slides//0",
        "/api/slides/0/thumbnail",
        "/api/slides/1/truth",
        "/api/slides/0/scores/2",
        "/api/slides/0/scores/-1",
        "/api/slides/2/scores/0",
        "/api/slides/6/scores/1",
        "/api/slides/0/tiles/5/0_0.png",
        "/api/slides/0/tiles/5/0_0.jpg/",
        "/api/slides/0/tiles/-1/0_0.jpg",
        "/api/slides/0/tiles/5/-1_0.jpg",
        "/api/slides/0/tiles/5/0_0_0.jpg",
        "/api/slides/0/tiles/5/0_0.jpg%0a",
        "/api",
        "/results.json",
        "/favicon.ico",
    ],
)
def test_missing_content_is_reported_as_404_with_a_message(app, target: str) -> None:
    reply = fetch(app, target)
    assert reply.status == 404
    assert set(reply.json()) == {"error"}


def test_head_returns_what_get_does_without_a_body(app) -> None:
    for target in ("/", "/api/results", "/api/slides/0/tiles/8/0_0.jpg", "/nowhere"):
        got, head = fetch(app, target), fetch(app, target, method="HEAD")
        assert (head.status, head.headers) == (got.status, got.headers)
        assert head.body == b""


def test_a_cached_document_is_not_sent_again(app) -> None:
    for target in ("/", "/api/results", "/api/slides/0/tiles/8/0_0.jpg"):
        first = fetch(app, target)
        again = fetch(app, target, headers={"if-none-match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert fetch(app, target, headers={"if-none-match": '"other"'}).body == first.body


def test_a_slide_written_anew_is_shown_anew(folder, make_app) -> None:
    app, target = make_app(folder), "/api/slides/0/tiles/8/0_0.jpg"
    before = fetch(app, target)
    Image.new("RGB", SIZE, "red").save(folder / "new.png")
    (folder / "new.png").replace(folder / "slides/tumour-1.tif")
    after = fetch(app, target)
    assert after.status == 200
    assert after.headers["etag"] != before.headers["etag"]


def test_a_full_queue_returns_503_with_retry_after(made, make_app) -> None:
    app = make_app(made, queue=WorkQueue(1, max_waiting=0))
    reply = fetch(app, "/api/results")
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert fetch(app, "/").status == 200


def test_another_slide_of_the_same_name_is_not_shown_under_the_heatmap(folder, make_app) -> None:
    Image.new("RGB", (300, 200), "red").save(folder / "slides/tumour-1.tif")
    app = make_app(folder)
    document = fetch(app, "/api/slides/0").json()
    assert not document["zoomable"]
    assert "has 300 x 200 pixels; expected 1,536 x 1,280" in document["reason"]
    assert fetch(app, "/api/slides/0/tiles/0/0_0.jpg").status == 422


def test_the_page_is_served_file_by_file(made, make_app, tmp_path) -> None:
    static = tmp_path / "static"
    (static / "assets").mkdir(parents=True)
    (static / "index.html").write_text("<title>page</title>")
    (static / "assets" / "a.js").write_text("1")
    app = make_app(made, static=static)
    page = fetch(app, "/")
    assert (page.body, page.headers["content-type"]) == (
        b"<title>page</title>",
        "text/html; charset=utf-8",
    )
    assert fetch(app, "/assets/a.js").headers["content-type"] == "text/javascript; charset=utf-8"
    for target in ("/assets/", "/assets", "/assets/b.js", "/assets/../index.html", "/static/"):
        assert fetch(app, target).status == 404


def test_without_a_build_the_page_names_the_command(app) -> None:
    reply = fetch(app, "/")
    assert reply.status == 200
    assert b"make viewer" in reply.body


def test_clients_without_gzip_get_the_same_unpacked_in_chunks(app, monkeypatch) -> None:
    packed = fetch(app, "/api/results", headers={"accept-encoding": "gzip"}).json()
    monkeypatch.setattr(gzip, "decompress", None)
    assert fetch(app, "/api/results").json() == packed


def test_a_file_that_is_named_twice_is_read_as_what_it_is_named(folder, make_app) -> None:
    whole = json.loads((folder / "results.json").read_text())
    whole["slides"][0]["thumbnail"] = whole["slides"][0]["truth"]
    (folder / "results.json").write_text(json.dumps(whole))
    app = make_app(folder)
    assert fetch(app, "/api/slides/0/truth").status == 200
    assert fetch(app, "/api/slides/0/thumbnail").status == 422


def test_outlines_and_scores_are_made_outside_the_process_of_the_server(
    made, make_app, monkeypatch
) -> None:
    app = make_app(made)
    monkeypatch.setattr(documents, "pack_json", None)
    assert fetch(app, "/api/slides/0/truth").status == 200
    assert fetch(app, "/api/slides/0/scores/0").status == 200


def test_the_list_is_served_while_outlines_are_being_made(made, make_app, monkeypatch) -> None:
    go_on = threading.Event()

    def make_outline(*_: Any) -> bytes:
        go_on.wait()
        return gzip.compress(b"{}")

    async def scenario() -> None:
        outlines = [asyncio.create_task(fetch_async(app, "/api/slides/0/truth")) for _ in range(50)]
        await asyncio.sleep(0)
        try:
            served = await asyncio.wait_for(fetch_async(app, "/api/results"), 10)
            assert served.status == 200
            assert not any(each.done() for each in outlines)
        finally:
            go_on.set()
        assert {(await each).status for each in outlines} == {200}

    monkeypatch.setattr(ResultsApi, "get_truth", make_outline)
    app = make_app(made)
    asyncio.run(scenario())
