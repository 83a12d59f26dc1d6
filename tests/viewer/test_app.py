"""The addresses answer as app.py promises."""

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
from asgi_caller import ask, asked
from PIL import Image
from results_maker import CLASSES, MODELS, SIZE, tile_scores
from slide_maker import tissue_pixels

from sacmil.heatmap.colors import make_color_scale
from sacmil.results import read_results
from sacmil.viewer import documents
from sacmil.viewer.content import ResultsApi
from sacmil.viewer.work_queue import WorkQueue


def numbered(made: Path) -> dict[str, int]:
    return {slide.slide_id: n for n, slide in enumerate(read_results(made).slides)}


def test_the_list_says_what_results_json_says(app, made) -> None:
    told, known = ask(app, "/api/results").json(), read_results(made)
    assert told["classes"] == list(CLASSES)
    assert [model["name"] for model in told["models"]] == list(MODELS)
    assert told["models"][0]["members"] == 3
    assert told["title"] == "results"
    assert told["colours"] == make_color_scale().tolist()
    for slide, expected in zip(told["slides"], known.slides, strict=True):
        assert (slide["slide_id"], slide["label"]) == (expected.slide_id, expected.label)
        assert (slide["mpp"], tuple(slide["size"])) == (expected.mpp, expected.size)
        for answer, said in zip(slide["answers"], expected.answers, strict=True):
            assert told["models"][answer["model"]]["name"] == said.model
            assert tuple(answer["probabilities"]) == said.probabilities
            assert answer["predicted"] == CLASSES[int(np.argmax(said.probabilities))]
            assert answer["scored"] == (said.scores is not None)


def test_the_list_knows_what_is_there_without_opening_a_slide(app, made) -> None:
    told = {slide["slide_id"]: slide for slide in ask(app, "/api/results").json()["slides"]}
    assert told["tumour-1"]["zoomable"]
    assert told["tumour-1"]["truth"]
    assert not told["tumour-1"]["thumbnail"]
    assert told["thumbnail-only"]["thumbnail"]
    for name in ("bag-only", "thumbnail-only"):
        assert not told[name]["zoomable"]
        assert f"sacmil view {made} --slides" in told[name]["why_not"]


def test_a_slide_says_how_it_is_cut(app, made) -> None:
    told = ask(app, f"/api/slides/{numbered(made)['tumour-1']}").json()
    levels = int(np.ceil(np.log2(max(SIZE)))) + 1
    assert told == {
        "size": list(SIZE),
        "mpp": 0.5,
        "tile": 256,
        "levels": levels,
        "zoomable": True,
        "why_not": None,
        "bounds": None,
    }


@pytest.mark.parametrize("name", ["bag-only", "thumbnail-only", "damaged"])
def test_a_slide_that_cannot_be_opened_says_why(app, made, name: str) -> None:
    number = numbered(made)[name]
    told = ask(app, f"/api/slides/{number}").json()
    assert (told["zoomable"], told["levels"]) == (False, 0)
    assert len(told["why_not"]) > 20
    tile = ask(app, f"/api/slides/{number}/tiles/0/0_0.jpg")
    assert tile.status == 422
    assert tile.json() == {"error": told["why_not"]}


def test_tiles_of_the_finest_level_are_the_slide(app, made) -> None:
    number = numbered(made)["tumour-1"]
    level = ask(app, f"/api/slides/{number}").json()["levels"] - 1
    shown = assembled(app, number, level, SIZE)
    assert np.abs(shown - tissue_pixels(*SIZE, seed=3).astype(float)).mean() < 4


def assembled(app: Any, number: int, level: int, size: tuple[int, int]) -> np.ndarray:
    width, height = size
    whole = np.zeros((height, width, 3))
    for y in range(-(-height // 256)):
        for x in range(-(-width // 256)):
            answer = ask(app, f"/api/slides/{number}/tiles/{level}/{x}_{y}.jpg")
            assert answer.headers["content-type"] == "image/jpeg"
            tile = np.asarray(Image.open(io.BytesIO(answer.body)))
            area = whole[256 * y : 256 * y + 256, 256 * x : 256 * x + 256]
            assert tile.shape == area.shape
            area[...] = tile
    return whole


def test_every_level_has_the_tiles_deep_zoom_expects_and_no_more(app, made) -> None:
    number = numbered(made)["tumour-1"]
    levels = ask(app, f"/api/slides/{number}").json()["levels"]
    for level in range(levels):
        width, height = (-(-side // 2 ** (levels - 1 - level)) for side in SIZE)
        assembled(app, number, level, (width, height))
        columns, rows = -(-width // 256), -(-height // 256)
        for x, y in ((columns, 0), (0, rows), (10**8, 10**8)):
            assert ask(app, f"/api/slides/{number}/tiles/{level}/{x}_{y}.jpg").status == 404
    assert (width, height) == SIZE
    assert ask(app, f"/api/slides/{number}/tiles/{levels}/0_0.jpg").status == 404


@pytest.mark.parametrize("model", MODELS)
def test_scores_arrive_as_exact_as_they_are(app, made, model: str) -> None:
    target = f"/api/slides/{numbered(made)['bag-only']}/scores/{MODELS.index(model)}"
    told, known = ask(app, target).json(), tile_scores(model)
    assert told["patch_size"] == known.patch_size
    np.testing.assert_array_equal(np.stack([told["x"], told["y"]], axis=1), known.coords)
    np.testing.assert_array_equal(np.float32(told["scores"]), known.scores)
    for c, name in enumerate(CLASSES):
        np.testing.assert_array_equal(
            np.float32(told["class_scores"][name]), known.class_scores[:, c]
        )
    assert (told["low"], told["high"]) == (min(told["scores"]), max(told["scores"]))


def test_json_is_gzipped_only_for_who_takes_it(app, made) -> None:
    target = f"/api/slides/{numbered(made)['bag-only']}/scores/0"
    plain = ask(app, target)
    packed = ask(app, target, headers={"accept-encoding": "gzip, br"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body


def test_truth_and_thumbnail_arrive_as_they_lie_in_the_folder(app, made) -> None:
    numbers = numbered(made)
    truth = ask(app, f"/api/slides/{numbers['tumour-1']}/truth")
    assert truth.json() == json.loads((made / "truth/tumour-1.geojson").read_text())
    picture = ask(app, f"/api/slides/{numbers['thumbnail-only']}/thumbnail")
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
def test_what_is_not_there_is_told_in_a_sentence(app, target: str) -> None:
    answer = ask(app, target)
    assert answer.status == 404
    assert set(answer.json()) == {"error"}


def test_head_answers_as_get_without_a_body(app) -> None:
    for target in ("/", "/api/results", "/api/slides/0/tiles/8/0_0.jpg", "/nowhere"):
        got, head = ask(app, target), ask(app, target, method="HEAD")
        assert (head.status, head.headers) == (got.status, got.headers)
        assert head.body == b""


def test_what_a_browser_has_is_not_sent_again(app) -> None:
    for target in ("/", "/api/results", "/api/slides/0/tiles/8/0_0.jpg"):
        first = ask(app, target)
        again = ask(app, target, headers={"if-none-match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert ask(app, target, headers={"if-none-match": '"other"'}).body == first.body


def test_a_slide_written_anew_is_shown_anew(folder, make_app) -> None:
    app, target = make_app(folder), "/api/slides/0/tiles/8/0_0.jpg"
    before = ask(app, target)
    turned = np.ascontiguousarray(tissue_pixels(*SIZE, seed=3)[::-1])
    Image.fromarray(turned).save(folder / "new.png")
    (folder / "new.png").replace(folder / "slides/tumour-1.tif")
    after = ask(app, target)
    assert after.status == 200
    assert after.headers["etag"] != before.headers["etag"]


def test_beyond_what_may_wait_one_is_asked_to_come_again(made, make_app) -> None:
    app = make_app(made, queue=WorkQueue(1, max_waiting=0))
    answer = ask(app, "/api/results")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert ask(app, "/").status == 200


def test_another_slide_of_the_same_name_is_not_shown_under_the_heatmap(folder, make_app) -> None:
    Image.new("RGB", (300, 200), "red").save(folder / "slides/tumour-1.tif")
    app = make_app(folder)
    told = ask(app, "/api/slides/0").json()
    assert not told["zoomable"]
    assert "has 300 x 200 pixels; expected 1,536 x 1,280" in told["why_not"]
    assert ask(app, "/api/slides/0/tiles/0/0_0.jpg").status == 422


def test_the_page_is_served_file_by_file(made, make_app, tmp_path) -> None:
    static = tmp_path / "static"
    (static / "assets").mkdir(parents=True)
    (static / "index.html").write_text("<title>page</title>")
    (static / "assets" / "a.js").write_text("1")
    app = make_app(made, static=static)
    page = ask(app, "/")
    assert (page.body, page.headers["content-type"]) == (
        b"<title>page</title>",
        "text/html; charset=utf-8",
    )
    assert ask(app, "/assets/a.js").headers["content-type"] == "text/javascript; charset=utf-8"
    for target in ("/assets/", "/assets", "/assets/b.js", "/assets/../index.html", "/static/"):
        assert ask(app, target).status == 404


def test_without_a_build_the_page_says_what_to_type(app) -> None:
    answer = ask(app, "/")
    assert answer.status == 200
    assert b"make viewer" in answer.body


def test_who_takes_no_gzip_gets_the_same_and_it_is_never_unpacked_whole(app, monkeypatch) -> None:
    packed = ask(app, "/api/results", headers={"accept-encoding": "gzip"}).json()
    monkeypatch.setattr(gzip, "decompress", None)
    assert ask(app, "/api/results").json() == packed


def test_a_file_that_is_named_twice_is_read_as_what_it_is_named(folder, make_app) -> None:
    whole = json.loads((folder / "results.json").read_text())
    whole["slides"][0]["thumbnail"] = whole["slides"][0]["truth"]
    (folder / "results.json").write_text(json.dumps(whole))
    app = make_app(folder)
    assert ask(app, "/api/slides/0/truth").status == 200
    assert ask(app, "/api/slides/0/thumbnail").status == 422


def test_outlines_and_scores_are_made_outside_the_process_of_the_server(
    made, make_app, monkeypatch
) -> None:
    app = make_app(made)
    monkeypatch.setattr(documents, "pack_truth", None)
    monkeypatch.setattr(documents, "pack_scores", None)
    assert ask(app, "/api/slides/0/truth").status == 200
    assert ask(app, "/api/slides/0/scores/0").status == 200


def test_the_list_is_served_while_outlines_are_being_made(made, make_app, monkeypatch) -> None:
    go_on = threading.Event()

    def make_outline(*_: Any) -> bytes:
        go_on.wait()
        return gzip.compress(b"{}")

    async def scenario() -> None:
        outlines = [asyncio.create_task(asked(app, "/api/slides/0/truth")) for _ in range(50)]
        await asyncio.sleep(0)
        try:
            served = await asyncio.wait_for(asked(app, "/api/results"), 10)
            assert served.status == 200
            assert not any(each.done() for each in outlines)
        finally:
            go_on.set()
        assert {(await each).status for each in outlines} == {200}

    monkeypatch.setattr(ResultsApi, "get_truth", make_outline)
    app = make_app(made)
    asyncio.run(scenario())
