"""The viewer's page in a real browser: user actions and what they show on screen."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pytest
from browser import ARGUMENTS, find_browser, skip_unless_ready, viewer
from exhaustive import mostly_slow
from PIL import Image
from results_maker import CLASSES, HOT, SIDE, SIZE, TRUTH, make_results, tile_scores
from slide_maker import tissue_pixels

from sacmil.heatmap.colors import (
    COLOR_SCALE,
    DIVERGING_COLOR_SCALE,
    apply_color_scale,
    normalize_scores,
    to_scale_positions,
)
from sacmil.results import read_results, read_scores

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

SLIDES = [
    "tumour-1",
    "normal-1",
    "unscored",
    "bag-only",
    "thumbnail-only",
    "damaged",
    "unlabelled",
]
MARK = (255, 45, 85)  # of the selected top tile


def predicted_scores(model: str) -> np.ndarray:
    """Scores of the class a model predicts for tumour-1; the file's main scores are of tumour."""
    return tile_scores(model).class_scores[:, int(model == "sac_mil")]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    skip_unless_ready()
    with viewer(make_results(tmp_path_factory.mktemp("viewer") / "results")) as address:
        yield address


class Window(NamedTuple):
    """A browser window, with its console errors and requested hosts."""

    page: Page
    errors: list[str]
    hosts: set[str]


@pytest.fixture(scope="module")
def window(address: str) -> Iterator[Window]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=[*ARGUMENTS])
        page = browser.new_page(base_url=address, reduced_motion="reduce")
        window = Window(page, [], set())
        page.on("console", lambda m: window.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: window.errors.append(str(error)))
        page.on("request", lambda request: window.hosts.add(urlsplit(request.url).netloc))
        yield window
        browser.close()


@pytest.fixture
def expected_errors() -> list[str]:
    """Patterns of console errors that a test causes on purpose."""
    return []


@pytest.fixture
def known_hosts(address: str) -> set[str]:
    """Hosts that a test sends requests to."""
    return {urlsplit(address).netloc, ""}  # data: has no host


@pytest.fixture
def page(window: Window, known_hosts: set[str], expected_errors: list[str]) -> Iterator[Page]:
    """An empty page; errors in its console and requests to other hosts fail the test."""
    window.errors.clear()
    window.hosts.clear()
    window.page.set_viewport_size({"width": 1000, "height": 700})
    window.page.mouse.move(1, 1)
    yield window.page
    window.page.goto("about:blank")
    window.page.unroute_all()
    assert window.hosts <= known_hosts
    known = re.compile("|".join(expected_errors) or "(?!)")
    assert [error for error in window.errors if not known.search(error)] == []


@pytest.fixture
def show(page: Page) -> Callable[..., Page]:
    """Open the page at a slide, by name, with further parameters of the link."""

    def show(slide: str = "tumour-1", **params: object) -> Page:
        page.goto("/#" + "&".join(f"{k}={v}" for k, v in {"slide": slide, **params}.items()))
        settle(page)
        return page

    return show


def settle(page: Page) -> None:
    """Wait until every visible picture is loaded and drawn."""
    page.wait_for_function(
        """() => {
            const selector = ".compare-panel:not([hidden]) .slide-canvas";
            const canvases = [...document.querySelectorAll(selector)];
            return canvases.length && canvases.every((canvas) => canvas.ariaBusy === "false");
        }"""
    )
    page.evaluate("() => new Promise((done) => setTimeout(done, 60))")


def wait_until_nearer(page: Page, width: float) -> None:
    """Wait until the view is narrower than a width."""
    page.wait_for_function(
        "(width) => document.querySelector('#panel-0').dataset.view.split(',')[2] < width",
        arg=width,
    )
    settle(page)


def view(page: Page, panel: int = 0) -> tuple[float, float, float]:
    """Center and width of the view, in level-0 pixels."""
    x, y, width = page.locator(f"#panel-{panel}").get_attribute("data-view").split(",")
    return float(x), float(y), float(width)


def on_screen(page: Page, positions: np.ndarray, panel: int = 0) -> np.ndarray:
    """(N, 2): positions of the slide in window pixels."""
    x, y, width = view(page, panel)
    box = page.locator(f"#panel-{panel} .slide-canvas").bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    return (np.asarray(positions) - (x, y)) * (box["width"] / width) + middle


def picture(page: Page) -> np.ndarray:
    """(H, W, 3): the window."""
    settle(page)
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)


def around(page: Page, positions: np.ndarray, panel: int = 0, reach: int = 2) -> np.ndarray:
    """(N, M, 3): the pixels around positions of the slide."""
    pixels = picture(page)
    spots = np.rint(on_screen(page, positions, panel)).astype(int)
    cut = [pixels[y - reach : y + reach + 1, x - reach : x + reach + 1] for x, y in spots]
    return np.array(cut).reshape(len(spots), -1, 3)


def mean_colors(page: Page, positions: np.ndarray, panel: int = 0, reach: int = 2) -> np.ndarray:
    """(N, 3): mean colors around positions of the slide."""
    return around(page, positions, panel, reach).mean(axis=1)


def text(page: Page, selector: str) -> str:
    return page.locator(selector).inner_text()


def names(page: Page) -> list[str]:
    return page.locator("#slide-table tbody td:nth-child(2)").all_inner_texts()


def middles(model: str = "sac_mil") -> np.ndarray:
    """(N, 2): centers of the tiles."""
    scores = tile_scores(model)
    return scores.coords + SIDE / 2


UNCOVERED = np.s_[24:72]  # tiles of the middle rows


# Opening and zooming


def test_the_slide_itself_is_on_screen(show: Callable[..., Page]) -> None:
    page = show(heat=0)
    positions = np.array([(500, 300), (700, 520), (900, 640), (1000, 800), (620, 400)])
    truth = tissue_pixels(*SIZE, seed=3).astype(int)
    expected = [truth[y - 6 : y + 6, x - 6 : x + 6].mean(axis=(0, 1)) for x, y in positions]
    assert np.abs(mean_colors(page, positions, reach=3) - expected).max() < 16


def level_of(route: Route) -> int:
    return int(re.search(r"tiles/(\d+)/", route.request.url)[1])


@pytest.mark.slow
def test_zooming_in_brings_finer_tiles(show: Callable[..., Page]) -> None:
    page = show(heat=0)
    levels: list[int] = []
    page.route("**/tiles/**", lambda route: levels.append(level_of(route)) or route.continue_())
    before = view(page)[2]
    for _ in range(4):
        page.keyboard.press("+")
    settle(page)
    assert view(page)[2] == pytest.approx(before / 1.5**4, rel=0.01)
    assert max(levels) == 11  # 2**11 pixels hold the slide in full
    truth = tissue_pixels(*SIZE, seed=3).astype(int)
    x, y = (round(part) for part in view(page)[:2])
    positions = np.array([(x - 30, y - 30), (x, y), (x + 40, y + 20)])
    expected = [truth[b - 5 : b + 5, a - 5 : a + 5].mean(axis=(0, 1)) for a, b in positions]
    assert np.abs(mean_colors(page, positions, reach=8) - expected).max() < 20
    page.keyboard.press("0")
    settle(page)
    assert view(page)[2] == before


def test_the_wheel_zooms_where_the_pointer_is(show: Callable[..., Page]) -> None:
    page = show()
    before, position = view(page), np.array([[384, 512]])
    where = on_screen(page, position)[0]
    page.mouse.move(*where)
    page.mouse.wheel(0, -300)
    wait_until_nearer(page, before[2])
    assert np.abs(on_screen(page, position)[0] - where).max() < 4


@pytest.mark.slow
def test_the_scale_bar_is_as_long_as_it_says_and_use_is_for_research(
    show: Callable[..., Page],
) -> None:
    page = show()
    assert "Research use only" in text(page, "footer")
    microns = float(re.search(r"([\d.]+) µm", text(page, ".scale-bar"))[1])
    width = page.locator(".slide-canvas").bounding_box()["width"]
    drawn = page.locator(".scale-bar .bar").bounding_box()["width"]
    assert drawn / width * view(page)[2] * 0.5 == pytest.approx(microns, rel=0.02)


# The heatmap


def test_every_tile_has_the_color_python_computes(show: Callable[..., Page]) -> None:
    page = show(opacity=1)
    scores = tile_scores("sac_mil")
    by_class = dict(zip(CLASSES, scores.class_scores.T, strict=True))
    for name, values in {"": scores.scores, **by_class}.items():
        page.select_option("#score-class", name)
        for scale in ("rank", "minmax"):
            page.select_option("#scale", scale)
            expected = apply_color_scale(normalize_scores(values, scale))[UNCOVERED]
            assert np.abs(mean_colors(page, middles()[UNCOVERED]) - expected).max() == 0


@pytest.mark.slow
def test_opacity_mixes_slide_and_color(show: Callable[..., Page]) -> None:
    page = show(heat=0)
    positions = middles()[UNCOVERED]
    plain = mean_colors(page, positions)
    page.locator("#heat").click()
    half = mean_colors(page, positions)
    for _ in range(5):
        page.keyboard.press("]")
    assert text(page, "#opacity-shown") == "100 %"
    full = mean_colors(page, positions)
    assert np.abs(full - plain).max(axis=1).min() > 30
    assert np.abs(half - (plain + full) / 2).max() < 4
    page.locator("#opacity").fill("0.25")
    assert np.abs(mean_colors(page, positions) - (0.75 * plain + 0.25 * full)).max() < 5
    page.keyboard.press("h")
    assert np.abs(mean_colors(page, positions) - plain).max() < 2


@pytest.mark.slow
def test_the_legend_shows_the_servers_colors_and_the_slides_scores(
    show: Callable[..., Page],
) -> None:
    page = show(scale="minmax", opacity=0.6)
    box = page.locator(".legend canvas").bounding_box()
    row = picture(page)[round(box["y"] + box["height"] / 2)]
    at = np.linspace(0.1, 0.9, 9)
    drawn = row[np.rint(box["x"] + at * box["width"]).astype(int)]
    on_white = 0.6 * COLOR_SCALE[np.rint(at * 255).astype(int)] + 0.4 * 255
    assert np.abs(drawn - on_white).max() < 6
    own = tile_scores("sac_mil").scores
    ticks = [float(tick) for tick in page.locator(".ticks span").all_inner_texts()]
    assert ticks[0] == pytest.approx(own.min(), rel=0.01)
    assert ticks[-1] == pytest.approx(own.max(), rel=0.01)
    page.select_option("#scale", "rank")
    heights = "labels => labels.map((label) => label.offsetHeight)"
    assert len(set(page.locator(".ticks b").evaluate_all(heights))) == 1  # a line each
    ticks = [float(tick) for tick in page.locator(".ticks span").all_inner_texts()]
    assert ticks[2] == pytest.approx(np.median(own), rel=0.05)


def test_the_pointer_shows_score_rank_and_position(show: Callable[..., Page]) -> None:
    page = show()
    scores = tile_scores("sac_mil")
    for tile in (30, 41, 66):
        page.mouse.move(*on_screen(page, middles()[[tile]])[0])
        readout = text(page, ".readout")
        rank = 1 + int((scores.scores > scores.scores[tile]).sum())
        x, y = scores.coords[tile]
        assert float(readout.split()[0]) == pytest.approx(scores.scores[tile], rel=1e-3)
        assert f"rank {rank} of 120" in readout
        assert f"x {x:,}" in readout
        assert f"y {y:,}" in readout
    page.mouse.move(5, 5)
    assert page.locator(".readout").is_hidden()


@pytest.mark.slow
def test_another_model_shows_its_own_map(show: Callable[..., Page]) -> None:
    page = show(opacity=1)
    page.keyboard.press("2")
    assert page.locator("#panel-0 select").input_value() == "1"
    expected = apply_color_scale(normalize_scores(predicted_scores("mean_pool"), "rank"))[UNCOVERED]
    page.get_by_text("Top tiles · mean_pool, score for normal (predicted)").wait_for()
    assert np.abs(mean_colors(page, middles()[UNCOVERED]) - expected).max() == 0
    assert "normal" in text(page, "#panel-0 .prediction-bar .predicted")
    assert "score for normal (predicted)" in text(page, "#panel-0 .legend figcaption")
    page.select_option("#score-class", "tumour")
    page.get_by_text("Top tiles · mean_pool, score for tumour").wait_for()
    assert "predicted" not in text(page, "#panel-0 .legend figcaption")


# The list


def test_the_list_marks_wrong_predictions_and_sorts_both_ways_and_back(
    show: Callable[..., Page],
) -> None:
    page = show()
    assert names(page) == SLIDES
    marks = page.locator("#slide-table tbody td:first-child").all_inner_texts()
    assert marks == ["✓", "✗", "✓", "✓", "✓", "✗", ""]
    assert text(page, "#slide-counts") == "7 slides · 2 of 6 labelled slides misclassified"
    page.keyboard.press("2")  # which predicts the opposite
    marks = page.locator("#slide-table tbody td:first-child").all_inner_texts()
    assert marks == ["✗", "✓", "✗", "✗", "✗", "✓", ""]
    page.keyboard.press("1")
    marks = page.locator("#slide-table tbody td:first-child").all_inner_texts()
    assert marks == ["✓", "✗", "✓", "✓", "✓", "✗", ""]
    by_share = [SLIDES[index] for index in (6, 4, 1, 3, 5, 2, 0)]
    for column, order in {"slide": sorted(SLIDES), "value": by_share}.items():
        head = page.locator(f"th[data-column={column}] button")
        head.click()
        assert names(page) == order
        head.click()
        assert names(page)[0] == order[-1]
        head.click()
        assert names(page) == SLIDES
    for _ in range(2):
        page.locator("th[data-column=label] button").click()
        assert names(page)[-1] == "unlabelled"  # what is unknown comes last, both ways
    page.locator("th[data-column=mark] button").click()
    assert names(page)[:2] == ["normal-1", "damaged"]
    page.select_option("#value-of", "tumour")
    page.locator("th[data-column=value] button").click()
    assert names(page)[0] == "unscored"


@pytest.mark.slow
def test_filters_show_matching_slides_and_count_them(show: Callable[..., Page]) -> None:
    page = show()
    page.keyboard.press("/")
    page.keyboard.type("ONLY")
    assert names(page) == ["bag-only", "thumbnail-only"]
    assert text(page, "#slide-counts").startswith("2 of 7 slides")
    page.keyboard.press("Escape")
    page.locator("#filter-text").fill("")
    page.locator("#filter-wrong").check()
    assert names(page) == ["normal-1", "damaged"]
    page.select_option("#filter-label", "normal")
    assert names(page) == ["normal-1"]
    page.select_option("#filter-predicted", "normal")
    assert "No slide matches" in text(page, "#slide-table tbody")
    assert text(page, "#slide-name") == "tumour-1"  # the open slide stays


# Flying and comparing


def test_a_top_tile_flies_there_and_is_outlined(show: Callable[..., Page]) -> None:
    page = show(opacity=0)
    page.get_by_role("button", name="Fly to top tile 1,").click()
    settle(page)
    x, y = HOT["sac_mil"]
    assert view(page)[:2] == pytest.approx((x + SIDE / 2, y + SIDE / 2), abs=2)
    edge = [(x + SIDE / 2, y), (x, y + SIDE / 2), (x + SIDE, y + SIDE / 2)]
    assert np.abs(mean_colors(page, edge, reach=0) - MARK).max() < 40
    page.keyboard.press("g")
    settle(page)
    assert view(page)[:2] != pytest.approx((x + SIDE / 2, y + SIDE / 2), abs=2)
    page.keyboard.press("G")
    settle(page)
    assert view(page)[:2] == pytest.approx((x + SIDE / 2, y + SIDE / 2), abs=2)


def test_top_tiles_are_cut_where_they_lie(show: Callable[..., Page]) -> None:
    page = show()
    cuts = page.locator("#top-list .cut canvas")
    cuts.nth(5).wait_for()
    truth = tissue_pixels(*SIZE, seed=3).astype(int)
    scores = tile_scores("sac_mil")
    best = np.argsort(-scores.scores, kind="stable")[:4]
    for at, tile in enumerate(best):
        x, y = scores.coords[tile]
        drawn = np.asarray(Image.open(io.BytesIO(cuts.nth(at).screenshot())).convert("RGB"))
        expected = truth[y : y + SIDE, x : x + SIDE]
        halves = [
            (np.s_[:, : len(part) // 2], np.s_[:, len(part) // 2 :]) for part in (drawn, expected)
        ]
        for one, other in zip(*halves, strict=True):
            assert (
                np.abs(drawn[one].mean(axis=(0, 1)) - expected[other].mean(axis=(0, 1))).max() < 12
            )


def test_two_models_side_by_side_move_together_and_the_pointer_shows_both(
    show: Callable[..., Page],
) -> None:
    page = show(opacity=1)
    page.keyboard.press("c")
    page.locator("#panel-1").wait_for()
    settle(page)
    assert view(page, 1) == pytest.approx(view(page, 0), abs=2)
    inner = np.array([HOT["sac_mil"], HOT["mean_pool"]]) + SIDE / 2
    for panel, model in enumerate(("sac_mil", "mean_pool")):
        scores = tile_scores(model)
        tiles = [int(np.flatnonzero((scores.coords == HOT[m]).all(axis=1))[0]) for m in HOT]
        expected = apply_color_scale(normalize_scores(predicted_scores(model), "rank"))[tiles]
        assert np.abs(mean_colors(page, inner, panel) - expected).max() == 0
    page.mouse.move(*on_screen(page, middles()[[41]])[0])
    readouts = page.locator(".readout").all_inner_texts()
    expected = [predicted_scores(model)[41] for model in HOT]
    assert [float(each.split()[0]) for each in readouts] == pytest.approx(expected, rel=1e-3)
    before = view(page, 0)
    page.mouse.move(*on_screen(page, inner[:1], panel=1)[0])
    page.mouse.wheel(0, -400)  # over the second: now that one leads
    wait_until_nearer(page, before[2])
    assert view(page, 0) == pytest.approx(view(page, 1), abs=2)
    assert page.locator("#panel-1.active").count() == 1
    assert "mean_pool" in text(page, "#top-title")
    page.keyboard.press("1")
    assert page.locator("#panel-1 select").input_value() == "0"
    page.locator("#compare").click()
    assert page.locator("#panel-1").is_hidden()


# Truth


def show_on_whole_pixels(show: Callable[..., Page], position: tuple[int, int]) -> Page:
    """Open the page at half size, so that a position of the slide lies between four pixels."""
    page = show(heat=0)
    frame = page.locator("#panel-0 .slide-canvas").bounding_box()
    sides = round(frame["width"]), round(frame["height"])
    x, y = (middle + side % 2 for middle, side in zip(position, sides, strict=True))
    page.goto("about:blank")
    return show(heat=0, view=f"{x},{y},{2 * sides[0]}")


def wait_until_overlay(page: Page, *, is_empty: bool) -> None:
    """Wait until the layer over the slide has no pixel left, or has its first."""
    page.wait_for_function(
        """(isEmpty) => {
            const canvas = document.querySelector("#panel-0 canvas.overlay");
            const { width, height } = canvas;
            const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
            return data.every((value) => value === 0) === isEmpty;
        }""",
        arg=is_empty,
        polling=50,
    )


def test_outlines_lie_where_the_truth_is(show: Callable[..., Page]) -> None:
    (left, top), (right, _), (_, bottom), _ = TRUTH
    page = show_on_whole_pixels(show, (left + 200, top + 200))
    wait_until_overlay(page, is_empty=True)
    positions = np.array([(500, top), (left, 600), (right, 600), (500, bottom)])
    corners = np.rint(on_screen(page, positions)).astype(int)
    across = np.array([(0, 1), (1, 0), (1, 0), (0, 1)])
    columns, rows = (corners[:, None] + across[:, None] * np.arange(-3, 3)[:, None]).T
    before = picture(page)
    page.keyboard.press("t")
    wait_until_overlay(page, is_empty=False)
    drawn = picture(page)[rows, columns]
    assert (drawn[1:5] == np.array([255, 0, 0, 255])[:, None, None]).all()  # black within white
    assert np.abs(drawn - before[rows, columns])[[0, 5]].max() < 2  # and tissue on either side
    page.locator("#truth").click()
    wait_until_overlay(page, is_empty=True)
    assert np.abs(picture(page) - before)[rows, columns].max() < 2


@pytest.mark.slow
def test_outlines_of_one_slide_never_lie_on_another(
    show: Callable[..., Page], page: Page, expected_errors: list[str]
) -> None:
    expected_errors.append("Failed to load resource")

    def with_truth(route: Route) -> None:
        whole = route.fetch().json()
        whole["slides"][1]["truth"] = True
        route.fulfill(json=whole)

    page.route("**/api/results", with_truth)
    page.route("**/api/slides/1/truth", reply_with(422, "These outlines are damaged."))
    show(heat=0, truth=1)
    (left, top), (right, _), (_, bottom), _ = TRUTH
    positions = [(500, top), (left, 600), (right, 600), (500, bottom)]
    assert (around(page, positions, reach=3).max(axis=2).min(axis=1) < 40).all()
    page.keyboard.press("j")
    page.get_by_text("These outlines are damaged.").wait_for()
    assert (around(page, positions, reach=3).max(axis=2).min(axis=1) > 60).all()


# Keys


@pytest.mark.slow
def test_keys_walk_through_the_list_and_the_image(show: Callable[..., Page]) -> None:
    page = show()
    for key, expected in (
        ("j", "normal-1"),
        ("ArrowDown", "unscored"),
        ("k", "normal-1"),
        ("ArrowUp", "tumour-1"),
        ("k", "tumour-1"),
    ):
        page.keyboard.press(key)
        assert text(page, "#slide-name") == expected
    settle(page)
    page.get_by_label("Slide: arrow keys pan").focus()
    for _ in range(3):
        page.keyboard.press("+")
    before = view(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    settle(page)
    after = view(page)
    assert after[0] > before[0]
    assert after[1] > before[1]
    assert text(page, "#slide-name") == "tumour-1"


@pytest.mark.slow
def test_help_lists_the_keys_and_takes_them_meanwhile(show: Callable[..., Page]) -> None:
    page = show()
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("j")
    assert text(page, "#slide-name") == "tumour-1"
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").is_hidden()


# What may be missing


def test_a_slide_without_scores_says_so_and_without_truth_shows_none(
    show: Callable[..., Page],
) -> None:
    page = show("unscored")
    assert "has no tile scores" in text(page, ".notice")
    assert page.locator("#truth").is_disabled()
    page.keyboard.press("t")
    assert page.locator("#truth").get_attribute("aria-pressed") == "false"
    for control in ("heat", "opacity", "score-class", "scale"):
        assert page.locator(f"#{control}").is_disabled()
    truth = tissue_pixels(*SIZE, seed=3).astype(int)
    expected = truth[634:646, 894:906].mean(axis=(0, 1))
    assert np.abs(mean_colors(page, [(900, 640)], reach=3) - expected).max() < 16


def test_a_model_without_a_prediction_for_the_slide_says_so(show: Callable[..., Page]) -> None:
    page = show("unlabelled", model="mean_pool")
    assert "has no prediction" in text(page, ".notice")
    assert "no label" in text(page, "#slide-details")


def test_a_bag_without_its_slide_shows_tiles_on_white(show: Callable[..., Page]) -> None:
    page = show("bag-only", opacity=1)
    expected = apply_color_scale(normalize_scores(tile_scores("sac_mil").scores, "rank"))[UNCOVERED]
    assert np.abs(mean_colors(page, middles()[UNCOVERED]) - expected).max() == 0
    assert "with the slide folder" in text(page, ".notice")
    page.keyboard.press("h")
    assert mean_colors(page, middles()[UNCOVERED]).min() > 250


def test_a_lost_slide_shows_its_thumbnail(show: Callable[..., Page]) -> None:
    page = show("thumbnail-only", heat=0)
    assert "thumbnail" in text(page, ".notice")
    truth = tissue_pixels(*SIZE, seed=3).astype(int)
    expected = truth[600:680, 860:940].mean(axis=(0, 1))
    assert np.abs(mean_colors(page, [(900, 640)], reach=12) - expected).max() < 20


def test_a_slide_that_cannot_be_opened_says_so(show: Callable[..., Page]) -> None:
    page = show("damaged")
    assert "damaged.tif" in text(page, ".notice")
    assert page.locator("#heat").is_enabled()


# Links and errors


@pytest.mark.slow
def test_a_link_leads_to_the_same_view(show: Callable[..., Page], page: Page) -> None:
    first = show(opacity=0.8, scale="minmax", **{"class": "tumour"})
    first.keyboard.press("c")
    first.keyboard.press("g")
    first.locator("#panel-1").wait_for()
    settle(first)
    first.wait_for_timeout(400)  # the address follows a moment later
    there, link = view(first), first.url
    page.goto("about:blank")
    page.goto(link)
    settle(page)
    assert view(page) == pytest.approx(there, abs=2)
    assert page.locator("#panel-1").is_visible()
    assert page.locator("#score-class").input_value() == "tumour"
    assert page.locator("#scale").input_value() == "minmax"
    assert text(page, "#opacity-shown") == "80 %"


@pytest.mark.slow
def test_a_nonsense_link_opens_the_first_slide(page: Page) -> None:
    page.goto("/#slide=%F0%9F%92%A9&model=none&view=NaN,1,-5&opacity=7&class=x&scale=")
    settle(page)
    assert text(page, "#slide-name") == "tumour-1"
    assert text(page, "#opacity-shown") == "50 %"
    assert "which is not in these results" in text(page, ".notice")
    page.keyboard.press("j")
    settle(page)
    assert "not in these results" not in text(page, ".notice")


def reply_with(status: int, message: str) -> Callable[[Route], None]:
    return lambda route: route.fulfill(status=status, json={"error": message})


def test_the_servers_errors_are_shown_as_sentences(page: Page, expected_errors: list[str]) -> None:
    expected_errors.append("Failed to load resource")
    page.route("**/api/slides/0/scores/0", reply_with(404, "The scores are damaged."))
    page.goto("/")
    page.get_by_text("The scores are damaged.").wait_for()
    assert page.locator("#heat").is_disabled()
    page.route("**/api/slides/1", reply_with(503, "Too many at once."))
    page.keyboard.press("j")
    page.get_by_text("Too many at once.").wait_for()
    page.route("**/api/results", reply_with(400, "This folder is no more."))
    page.reload()
    page.get_by_text("This folder is no more.").wait_for()


def zoom_into_lost_slide(page: Page) -> None:
    """Let every further tile fail, zoom in, and wait for the error."""
    before = view(page)[2]
    page.route("**/tiles/**", reply_with(422, "The slide is gone."))
    for _ in range(5):
        page.keyboard.press("+")
    page.wait_for_function(
        "(width) => document.querySelector('#panel-0').dataset.view.split(',')[2] < width",
        arg=before / 5,
    )
    page.get_by_text("The slide is gone.").wait_for()


@pytest.mark.slow
def test_a_slide_that_is_lost_while_open_is_reported(
    show: Callable[..., Page], page: Page, expected_errors: list[str]
) -> None:
    expected_errors += ["Failed to load resource", "Tile .* failed to load"]
    # Intercept from the first request on, so that the test does not depend on the browser's cache
    # or on when a first route takes effect on an open page.
    page.route("**/tiles/**", lambda route: route.continue_())
    zoom_into_lost_slide(show("unlabelled"))


@pytest.mark.slow
def test_the_error_of_a_lost_slide_stays_when_scores_come_late(
    show: Callable[..., Page], page: Page, expected_errors: list[str]
) -> None:
    expected_errors += ["Failed to load resource", "Tile .* failed to load"]
    held: list[Route] = []
    page.route("**/scores/**", lambda route: held.append(route))
    show()
    assert page.locator("#heat").is_disabled(), "the scores have not come"
    zoom_into_lost_slide(page)
    for route in held:
        route.continue_()
    page.locator("#heat:enabled").wait_for()
    assert page.get_by_text("The slide is gone.").is_visible()


def test_a_stopped_server_is_reported(page: Page, expected_errors: list[str]) -> None:
    expected_errors += ["Failed to load resource", "Tile .* failed to load"]
    page.goto("/")
    settle(page)
    page.route("**/api/**", lambda route: route.abort())
    page.keyboard.press("j")
    page.get_by_text("Is sacmil view still running?").wait_for()


def check_rows_in_sight(page: Page, name: str) -> None:
    """Check that a slide's row is on screen, among few rows in a list as long as all of them."""
    row = page.get_by_role("row", name=name, exact=False).filter(
        has=page.get_by_text(name, exact=True)
    )
    frame, box = page.locator("#slide-table-frame").bounding_box(), row.bounding_box()
    assert frame["y"] <= box["y"] <= frame["y"] + frame["height"] - box["height"]
    assert len(names(page)) < 200
    length = page.locator("#slide-table tbody").evaluate("(body) => body.offsetHeight")
    assert length == pytest.approx(1000 * box["height"], rel=0.01)


@pytest.mark.slow
def test_a_thousand_slides_and_a_hundred_thousand_tiles(page: Page) -> None:
    def many(route: Route) -> None:
        whole = route.fetch().json()
        like = whole["slides"][3]
        whole["slides"] = [like | {"slide_id": f"bag-{n}", "size": None} for n in range(1000)]
        route.fulfill(json=whole)

    columns, rows = np.meshgrid(np.arange(400) * 256, np.arange(250) * 256)
    scores = {
        "patch_size": 256,
        "x": columns.ravel().tolist(),
        "y": rows.ravel().tolist(),
        "scores": np.linspace(0, 1, 100_000).tolist(),
        "class_scores": None,
    }
    image = {"size": None, "mpp": None, "tile": 256, "levels": 0, "zoomable": False}
    page.route("**/api/results", many)
    page.route(
        "**/api/slides/*",
        lambda route: route.fulfill(json=image | {"reason": "no slide", "bounds": None}),
    )
    page.route("**/api/slides/*/scores/*", lambda route: route.fulfill(json=scores))
    page.goto("/#slide=bag-999&opacity=1&class=tumour")
    settle(page)
    assert text(page, "#slide-counts").startswith("1,000 slides")
    check_rows_in_sight(page, "bag-999")
    page.locator("#slide-table-frame").evaluate("(frame) => frame.scrollTo(0, 0)")
    page.locator("#slide-0").wait_for()
    check_rows_in_sight(page, "bag-0")
    assert "100,000 tiles" in text(page, "#slide-details")
    assert "No scores for tumour here" in text(page, ".notice")
    assert "mean rank by 3 members" in text(page, ".legend figcaption")
    assert page.locator("#score-class").is_disabled()
    position = np.array([[200 * 256 + 128, 125 * 256 + 128]])
    expected = apply_color_scale(np.array([(125 * 400 + 200) / 99_999]))
    assert np.abs(mean_colors(page, position, reach=0) - expected).max() <= 1
    page.mouse.move(*on_screen(page, position)[0])
    assert "of 100,000" in text(page, ".readout")


@pytest.mark.slow
def test_nothing_is_cut_off_or_scrolls(show: Callable[..., Page]) -> None:
    page = show(beside="mean_pool")
    for width, height in ((1440, 900), (1024, 768)):
        page.set_viewport_size({"width": width, "height": height})
        settle(page)
        beyond = page.evaluate(
            """() => [...document.querySelectorAll("button, select, .legend, .scale-bar")]
                .filter((part) => part.checkVisibility())
                .filter((part) => !part.closest("#top-list, #slide-table"))
                .map((part) => [part.getBoundingClientRect(), part.id || part.className])
                .filter(([box]) => box.right > innerWidth || box.left < 0
                    || box.bottom > innerHeight)
                .map(([, name]) => name)"""
        )
        assert beyond == []
        assert page.evaluate("() => document.documentElement.scrollHeight <= innerHeight")


@pytest.mark.slow
def test_a_long_class_name_never_hides_its_probability(page: Page) -> None:
    def lengthened(route: Route) -> None:
        long = {name: f"{name} with a name as long as pathologists give" for name in CLASSES}
        whole = route.fetch().json()
        for slide in whole["slides"]:
            for prediction in slide["predictions"]:
                prediction["predicted"] = long[prediction["predicted"]]
                for choice in prediction["choices"]:
                    choice["name"] = long[choice["name"]]
        route.fulfill(json=whole | {"levels": list(long.values())})

    page.route("**/api/results", lengthened)
    page.goto("/#beside=mean_pool")
    settle(page)
    for panel in (0, 1):
        head = page.locator(f"#panel-{panel} > header").bounding_box()
        share = page.locator(f"#panel-{panel} .predicted > span").last.bounding_box()
        assert share["x"] + share["width"] <= head["x"] + head["width"]


# Other tasks


@pytest.fixture(scope="module")
def task_address(task_folder: Callable[[str], Path]) -> Iterator[Callable[[str], str]]:
    """Returns the address of a viewer of a task's results; each is started once."""
    skip_unless_ready()
    with ExitStack() as servers:
        yield cache(lambda name: servers.enter_context(viewer(task_folder(name))))


@pytest.fixture
def show_task(
    page: Page, known_hosts: set[str], task_address: Callable[[str], str]
) -> Callable[..., Page]:
    """Open the results of a task, with parameters of the link."""

    def show(name: str, **params: object) -> Page:
        known_hosts.add(urlsplit(address := task_address(name)).netloc)
        page.goto(f"{address}#" + "&".join(f"{k}={v}" for k, v in params.items()))
        settle(page)
        page.locator("#heat:enabled").wait_for()
        return page

    return show


def texts(page: Page, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def predictions(page: Page) -> list[str]:
    return texts(page, "#slide-table tbody td:nth-child(4)")


def options(page: Page, selector: str) -> list[str]:
    return page.locator(f"{selector} option").all_text_contents()


def test_a_regression_shows_numbers_and_only_filters_that_make_sense(
    show_task: Callable[..., Page],
) -> None:
    page = show_task("regression")
    bar = page.locator(".prediction-bar")
    assert bar.inner_text().split() == ["ki67", "23.14"]
    assert page.locator(".prediction-bar .bar, #slide-table tbody .bar").count() == 0
    page.keyboard.press("2")
    assert bar.inner_text().split() == ["ki67", "23.14", "±", "0.01"]
    for hidden in ("filter-label", "filter-predicted", "filter-wrong", "value-of", "score-class"):
        assert page.locator(f"#{hidden}").is_hidden()
    for column in ("value", "mark"):
        assert page.locator(f"th[data-column={column}]").is_hidden()
    assert predictions(page) == ["23.14", "115.5", "9.25", "-3"]
    assert text(page, "#slide-counts") == "4 slides"
    page.locator("th[data-column=predicted] button").click()
    assert predictions(page) == ["-3", "9.25", "23.14", "115.5"]
    page.locator("th[data-column=label] button").click()
    assert names(page) == ["b", "a", "c", "d"]  # 4.5, 25, 100 and none


@pytest.mark.slow
def test_several_targets_are_listed_by_the_chosen_one(show_task: Callable[..., Page]) -> None:
    page = show_task("targets")
    assert text(page, ".prediction-bar").split() == ["ki67", "23.14", "age", "61.5"]
    assert predictions(page) == ["23.14, 61.5", "115.5, 47.25", "9.25, 70"]
    values = "#slide-table tbody td:nth-child(5)"
    assert texts(page, values) == ["23.14", "115.5", "9.25"]
    assert options(page, "#value-of") == ["Value of ki67", "Value of age"]
    page.select_option("#value-of", "age")
    assert texts(page, values) == ["61.5", "47.25", "70"]
    page.locator("th[data-column=value] button").click()
    assert names(page) == ["b", "a", "c"]


def test_levels_have_bars_marks_and_an_order(show_task: Callable[..., Page]) -> None:
    page = show_task("ordinal")
    expected = "mid, expected level from 0 (low) to 2 (high): 1.10"
    assert text(page, ".prediction-bar .headline") == expected
    assert texts(page, ".prediction-bar b") == ["mid", "high", "low"]
    assert texts(page, ".prediction-bar li > span:last-child") == ["50.0 %", "30.0 %", "20.0 %"]
    assert page.locator(".prediction-bar .bar").count() == 3
    assert texts(page, "#slide-table tbody td:first-child") == ["✓", "✗", "✓"]
    assert text(page, "#slide-counts") == "3 slides · 1 of 3 labelled slides misclassified"
    assert options(page, "#filter-label") == ["Any label", "low", "mid"]
    assert options(page, "#filter-predicted") == ["Any prediction", "low", "mid", "high"]
    assert options(page, "#value-of") == ["P of predicted", "P of low", "P of mid", "P of high"]
    page.locator("th[data-column=predicted] button").click()
    assert predictions(page) == ["low", "mid", "high"]
    page.locator("#filter-wrong").check()
    assert names(page) == ["b"]


def test_labels_are_filtered_and_have_scores_of_their_own(show_task: Callable[..., Page]) -> None:
    page = show_task("multilabel", opacity=1)
    assert text(page, ".prediction-bar .headline") == "er 0.81, her2 0.60"
    assert texts(page, ".prediction-bar b") == ["er", "her2", "pr"]
    assert page.locator(".prediction-bar .bar").count() == 3
    assert predictions(page) == ["er, her2", "pr", "none"]
    assert options(page, "#value-of") == ["Highest P", "P of er", "P of pr", "P of her2"]
    assert options(page, "#filter-predicted") == ["Any prediction", "er, her2", "none", "pr"]
    assert page.locator("#filter-wrong").is_hidden()
    page.select_option("#filter-predicted", "pr")
    assert names(page) == ["b"]
    page.select_option("#filter-predicted", "")
    page.locator("th[data-column=value] button").click()
    assert names(page) == ["c", "a", "b"]
    assert options(page, "#score-class") == ["default", "for er", "for pr", "for her2"]
    assert text(page, ".legend figcaption") == "score for er · % of tiles below"
    page.select_option("#score-class", "pr")
    page.get_by_text("Top tiles · one, score for pr").wait_for()


def check_diverging_colors(page: Page, values: np.ndarray) -> None:
    """Check the colors of tiles and the legend, whose middle is zero."""
    positions, _, _ = to_scale_positions(normalize_scores(values, "diverging"), "diverging")
    expected = apply_color_scale(positions, DIVERGING_COLOR_SCALE)[UNCOVERED]
    assert np.abs(mean_colors(page, middles()[UNCOVERED]) - expected).max() == 0
    low, zero, high = texts(page, ".legend .ticks span")
    largest = np.abs(values).max()
    assert [float(low), float(high)] == pytest.approx([-largest, largest], rel=0.01)
    assert (zero, high[0]) == ("0", "+")
    box = page.locator(".legend canvas").bounding_box()
    row = picture(page)[round(box["y"] + box["height"] / 2)]
    drawn = row[np.rint(box["x"] + np.array([0.1, 0.5, 0.9]) * box["width"]).astype(int)]
    ends = DIVERGING_COLOR_SCALE[[26, 128, 230]].astype(int)
    assert np.abs(drawn - ends).max() < 6


@pytest.mark.parametrize("name", mostly_slow(["regression", "ordinal", "survival"], "survival"))
def test_what_a_tile_adds_is_red_and_what_it_takes_is_blue(
    show_task: Callable[..., Page], task_folder: Callable[[str], Path], name: str
) -> None:
    page = show_task(name, opacity=1)
    score_name = {"regression": "ki67", "ordinal": "grade", "survival": "the risk"}[name]
    verb = "raises" if name == "survival" else "adds to"
    page.locator("#panel-0 .curve").evaluate("curve => curve.remove()")  # it lies over tiles
    assert text(page, ".legend figcaption") == "What a tile does"
    above, below = f"{verb} {score_name}", f"lowers {score_name}"
    assert texts(page, ".legend .ticks b") == [below, "", above]
    page.get_by_text(f"Top tiles · one, {above} (red) or {below} (blue)").wait_for()
    check_diverging_colors(page, read_scores(task_folder(name) / "scores/one/a.npz").scores)
    assert page.locator("#scale").is_disabled()
    assert page.locator("#scale").input_value() == "zero"
    page.keyboard.press("2")  # whose attention stays on the usual scale
    page.get_by_text("Top tiles · many, mean rank by 3 members").wait_for()
    attention = read_scores(task_folder(name) / "scores/many/a.npz").scores
    expected = apply_color_scale(normalize_scores(attention, "rank"))[UNCOVERED]
    assert np.abs(mean_colors(page, middles()[UNCOVERED]) - expected).max() == 0
    assert page.locator("#scale").is_enabled()
    assert page.locator("#scale").input_value() == "rank"


def test_every_target_has_colors_around_its_own_zero(
    show_task: Callable[..., Page], task_folder: Callable[[str], Path]
) -> None:
    page = show_task("targets", opacity=1)
    page.select_option("#score-class", "age")
    page.get_by_text("Top tiles · one, adds to age (red) or lowers age (blue)").wait_for()
    by_target = read_scores(task_folder("targets") / "scores/one/a.npz").class_scores
    check_diverging_colors(page, by_target[:, 1])


def test_negative_scores_of_labels_stay_on_the_usual_scale(
    show_task: Callable[..., Page], task_folder: Callable[[str], Path]
) -> None:
    page = show_task("multilabel", opacity=1)
    values = read_scores(task_folder("multilabel") / "scores/one/a.npz").scores
    assert values.min() < 0
    expected = apply_color_scale(normalize_scores(values, "rank"))[UNCOVERED]
    assert np.abs(mean_colors(page, middles()[UNCOVERED]) - expected).max() == 0


def read_curve(page: Page) -> list[np.ndarray]:
    """Points of the lines as drawn, in percent of the width and from the bottom."""
    lines = page.locator("#panel-0 .curve polyline")
    found = lines.evaluate_all(
        "lines => lines.map(({points}) => Array.from(points, ({x, y}) => [x, 100 - y]))"
    )
    return [np.array(line) for line in found]


def test_a_curve_is_drawn_with_its_members_behind(
    show_task: Callable[..., Page], task_folder: Callable[[str], Path]
) -> None:
    page = show_task("survival")
    stored = read_results(task_folder("survival")).slides[0].answers
    headline = "high risk, above 81% of the training patients"
    assert text(page, ".prediction-bar .headline") == headline
    names_shown = ["risk percentile", "survival 12 months", "survival 36 months"]
    assert texts(page, ".prediction-bar b") == names_shown
    assert texts(page, ".prediction-bar li > span:last-child") == ["81%", "82%", "55%"]
    assert options(page, "#value-of") == names_shown
    (line,) = read_curve(page)
    np.testing.assert_allclose(line[:, 0], [0, 25, 50, 75, 100])
    np.testing.assert_allclose(line[:, 1], [100, *(100 * v for v in stored[0].values[2:])])
    page.keyboard.press("2")
    page.get_by_text("Thin lines: its 3 members.").wait_for()
    *members, mean = read_curve(page)
    np.testing.assert_allclose(mean, line)
    expected = [[100 * value for value in member[2:]] for member in stored[1].members]
    np.testing.assert_allclose([member[1:, 1] for member in members], expected, atol=0.01)
    image = page.get_by_role("img", name=re.compile("survival by time .months.: 100% at 0, 82%"))
    assert image.is_visible()
    assert page.locator("#panel-0 .curve text").all_text_contents() == [
        *("0%", "50%", "100%", "0", "12", "24", "36", "48"),
        "time (months)",
    ]
    page.locator("#panel-0 .curve summary").click()
    assert image.is_hidden()
    page.keyboard.press("j")
    settle(page)
    assert image.is_hidden(), "it stays folded"
    assert page.locator("#panel-0 .curve summary").inner_text() == "survival"


def test_without_a_curve_there_is_no_frame_for_it(show_task: Callable[..., Page]) -> None:
    page = show_task("regression")
    assert page.locator(".curve").is_hidden()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression", "multilabel", "survival"])
def test_a_narrow_page_has_the_list_above_the_slide(
    show_task: Callable[..., Page], name: str
) -> None:
    page = show_task(name)
    page.set_viewport_size({"width": 390, "height": 844})
    settle(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 390
    slides, main = (page.locator(part).bounding_box() for part in ("#slides", "main"))
    assert slides["y"] + slides["height"] <= main["y"]
    if name != "survival":  # whose curve stands above the slide, and the page scrolls
        assert main["y"] + main["height"] <= 844
    assert page.locator(".slide-canvas").bounding_box()["height"] > 200
    head = page.locator(".prediction").bounding_box()
    for item in page.locator(".prediction-bar li").all():  # none is cut off
        assert item.bounding_box()["y"] < head["y"] + head["height"]
