"""Pictures of whole slides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from sacmil.cohorts.outlines import make_outlines
from sacmil.errors import ConfigError, RunError, SlideError
from sacmil.heatmap import ScoreWords, draw_heatmap, find_top_tiles, select_scores
from sacmil.heatmap.annotations import ColorBar, PictureText, _bar_width, _format_ticks
from sacmil.heatmap.canvas import Canvas, Viewport, fit_viewport, open_canvas, read_viewport
from sacmil.heatmap.colors import COLOR_SCALE, DIVERGING_COLOR_SCALE, get_color_scale
from sacmil.heatmap.pictures import _place_numbers, draw_overlay, draw_pictures
from sacmil.results import InstanceScores
from sacmil.slides.readers import open_slide
from sacmil.tasks import Classification, MultiLabel, Regression, Survival, Task

NUMBER = ScoreWords.from_task(Regression("ki67"))


def pixels(path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


def has_color(picture: np.ndarray, color: np.ndarray) -> bool:
    return bool((picture == color).all(axis=2).any())


def test_with_the_slide_there_are_overlay_map_and_tiles(tmp_path, scores, slide) -> None:
    written = draw_heatmap(tmp_path / "out", "a", scores, slide=slide, mpp=0.5)
    assert {kind: path.name for kind, path in written.items()} == {
        "overlay": "a_overlay.png",
        "map": "a_map.png",
        "tiles": "a_tiles.png",
    }
    assert all(pixels(path).size for path in written.values())


def test_without_the_slide_the_map_is_drawn_on_white(tmp_path, scores) -> None:
    written = draw_heatmap(tmp_path, "a", scores)
    assert set(written) == {"overlay", "map"}
    picture = pixels(written["overlay"])
    assert has_color(picture, COLOR_SCALE[0])
    assert has_color(picture, COLOR_SCALE[-1])


def test_truth_widens_the_picture_by_a_panel_and_is_a_black_line(tmp_path, scores) -> None:
    outlines = make_outlines([[(100, 100), (500, 100), (500, 500), (100, 500)]])
    plain = pixels(draw_heatmap(tmp_path, "a", scores)["overlay"])
    for truth in (outlines, (scores.coords[:, 0] > 300).astype(int)):
        wider = pixels(draw_heatmap(tmp_path, "b", scores, truth=truth)["overlay"])
        assert wider.shape[1] > 1.5 * plain.shape[1]
        assert (wider == 0).all(axis=2).sum() > 500 + (plain == 0).all(axis=2).sum()


def test_a_class_has_pictures_and_a_name_of_its_own(tmp_path, scores) -> None:
    one, other = (
        draw_heatmap(tmp_path, "a", scores, classes=("no", "yes"), class_name=name)["map"]
        for name in ("no", "yes")
    )
    assert (one.name, other.name) == ("a_no_map.png", "a_yes_map.png")
    assert one.read_bytes() != other.read_bytes()


def test_an_unknown_class_is_rejected_with_the_known_ones(tmp_path, scores) -> None:
    with pytest.raises(ConfigError, match="known are: no, yes"):
        draw_heatmap(tmp_path, "a", scores, classes=("no", "yes"), class_name="tumour")
    with pytest.raises(ConfigError, match="leave the class out"):
        draw_heatmap(tmp_path, "a", replace(scores, class_scores=None), class_name="yes")


@pytest.mark.parametrize("slide_id", ["../x", "/etc/x\n", "Ж" * 300])
def test_a_hostile_slide_id_writes_only_into_its_folder(tmp_path, scores, slide_id) -> None:
    out = tmp_path / "deep" / "out"
    written = draw_heatmap(out, slide_id, scores, classes=("../a", "b"), class_name="../a")
    assert {path.parent for path in written.values()} == {out}
    assert {path.parent for path in tmp_path.rglob("*.png")} == {out}


@pytest.mark.parametrize(
    ("coords", "patch_size", "values"),
    [
        ([(5, 5)], 100, [3.0]),
        ([(0, 0), (100, 0)], 100, [2.0, 2.0]),
        ([(0, 0), (50, 0), (50, 50), (300, 0), (0, 300)], 100, [1, 2, 3, 4, 5]),
        ([(0.5, 17.25), (333.1, 90.7)], 64.5, [-1e-30, 1e30]),
        ([(i * 100, 0) for i in range(500)], 100, range(500)),
        ([(-20, -20), (0, 10**7)], 20, [0, 1]),
    ],
    ids=["one", "constant", "overlapping and apart", "off the grid", "a line", "far"],
)
def test_any_layout_of_tiles_is_drawn(tmp_path, coords, patch_size, values) -> None:
    scores = InstanceScores(np.array(coords), patch_size, np.array(values, np.float32))
    for path in draw_heatmap(tmp_path, "a", scores, mpp=0.25).values():
        assert max(pixels(path).shape) < 3000


@pytest.mark.parametrize("normalization", ["raw", "minmax", "rank", "diverging"])
def test_scores_of_any_size_are_drawn(tmp_path, normalization) -> None:
    coords, values = np.array([(0, 0), (100, 0)]), np.array([-1e-30, 1e30], np.float32)
    canvas = Canvas(Viewport(0, 0, 20, 10, 10), None)
    text = PictureText("a", "", "score", normalization)
    picture = np.asarray(draw_overlay(InstanceScores(coords, 100, values), canvas, text))
    assert has_color(picture, get_color_scale(normalization)[-1])


def test_scores_that_are_not_finite_are_rejected(tmp_path, scores) -> None:
    broken = replace(scores, scores=np.full(len(scores.scores), np.nan, np.float32))
    with pytest.raises(RunError, match="NaN"):
        draw_heatmap(tmp_path, "a", broken)


def test_another_slide_is_rejected(tmp_path, scores, slide) -> None:
    with pytest.raises(SlideError, match="900 x 700 pixels, the bag's slide has 9,000"):
        draw_heatmap(tmp_path, "a", scores, slide=slide, slide_size=(9000, 700))
    with pytest.raises(SlideError, match="tiles lie outside it"):
        draw_heatmap(tmp_path, "a", replace(scores, coords=scores.coords + 800), slide=slide)


def test_the_slide_is_drawn_under_its_tiles(slide) -> None:
    with open_slide(slide) as opened:
        whole = opened.read(0, 0, 0, 900, 700)
        shown = read_viewport(opened, Viewport(100, 200, 300, 150, 1))
        beyond = read_viewport(opened, Viewport(-50, -50, 100, 100, 1))
    assert (shown == whole[200:350, 100:400]).all()
    assert (beyond[:50] == 255).all()
    assert (beyond[50:, 50:] == whole[:50, :50]).all()


def test_the_viewport_has_every_tile_and_ends_with_the_slide(scores) -> None:
    view = fit_viewport(scores, slide_size=(900, 700), longer_side=450)
    assert view == Viewport(0, 0, 450, 350, 2)
    corners = fit_viewport(scores).to_pixels([scores.coords.min(0), scores.coords.max(0) + 100])
    assert (corners > 0).all()


def test_the_top_tiles_are_the_highest_first_and_ties_in_order() -> None:
    coords = np.array([(i * 10, 0) for i in range(6)])
    scores = InstanceScores(coords, 10, np.zeros(6, np.float32))
    assert find_top_tiles(scores, np.array([1.0, 5, 3, 5, 0, 2]), 4).tolist() == [1, 3, 2, 5]
    assert find_top_tiles(scores, np.zeros(6), 10).tolist() == [0, 1, 2, 3, 4, 5]
    assert find_top_tiles(scores, np.zeros(6), 0).tolist() == []


def test_tiles_that_overlap_a_better_one_are_left_out() -> None:
    coords = np.array([(0, 0), (2, 2), (8, 0), (20, 0)])
    scores = InstanceScores(coords, 10, np.zeros(4, np.float32))
    assert find_top_tiles(scores, np.array([3.0, 4, 2, 1]), 4).tolist() == [1, 3]


def test_the_picture_of_top_tiles_shows_the_tiles_themselves(tmp_path, scores, slide) -> None:
    few = InstanceScores(scores.coords[[5]], 100, np.ones(1, np.float32))
    picture = pixels(draw_heatmap(tmp_path, "a", few, slide=slide)["tiles"])
    frame = (picture == COLOR_SCALE[128]).all(axis=2)
    top, left = (np.flatnonzero(frame.any(axis=axis))[0] for axis in (1, 0))
    shown = picture[top + 6 : top + 226, left + 6 : left + 226]
    with open_slide(slide) as opened:
        tile = Image.fromarray(opened.read(*scores.coords[5].tolist(), 0, 100, 100))
    assert (shown == np.asarray(tile.resize((220, 220), Image.Resampling.BICUBIC))).all()


def test_numbers_of_neighbouring_tiles_do_not_overlap() -> None:
    for side, corner in ((3.0, (30.0, 30.0)), (6.0, (500.0, 300.0)), (15.0, (500.0, 300.0))):
        grid = np.stack(np.divmod(np.arange(9), 3), axis=1) * side + corner
        positions = _place_numbers(grid, side, (1000, 600))
        distances = np.abs(positions[:, None] - positions).max(axis=2) + 99 * np.eye(9)
        assert distances.min() >= 13
        assert ((positions > 0) & (positions < (1000, 600))).all()


@pytest.mark.parametrize(("low", "high"), [(8.7, 14.6), (0, 1), (-3e-9, 2e-9), (1e6, 1e6 + 3)])
def test_even_steps_of_a_colour_bar_look_even(low: float, high: float) -> None:
    steps = np.diff([float(text) for text in _format_ticks(ColorBar(low, high, "raw"))])
    np.testing.assert_allclose(steps, (high - low) / 4, rtol=0.1)


def test_the_bar_of_diverging_scores_names_its_ends_and_zero() -> None:
    bar = ColorBar(-0.92531, 0.92531, "score", DIVERGING_COLOR_SCALE, is_diverging=True)
    assert _format_ticks(bar) == ["-0.925", "0", "+0.925"]
    assert _format_ticks(bar._replace(low=-0.0, high=0.0)) == ["0"]


def test_the_ends_of_the_bar_say_what_they_mean(tmp_path, signed) -> None:
    words = ScoreWords.from_task(Survival())
    shown = select_scores(signed, words.task.score_names, predicted="risk")
    text = shown.make_text("a", "low risk", "score", shown.choose_normalization(words=words), words)
    assert text.effects == ("raises the risk", "lowers the risk")
    assert text.describe_scores() == (
        "low risk\na tile raises the risk (red) or lowers the risk (blue) · no color is zero, the "
        "strongest is the largest effect"
    )
    bar = ColorBar(-1, 1, "score", DIVERGING_COLOR_SCALE, is_diverging=True, effects=text.effects)
    assert _bar_width(bar) > _bar_width(bar._replace(effects=None))
    long = bar._replace(effects=("adds to " + "x" * 500, "lowers it"))
    assert _bar_width(long) < 300


@pytest.fixture
def signed(scores) -> InstanceScores:
    """Scores of one target, from -400 to 400."""
    return InstanceScores(scores.coords, 100, scores.scores - 400, None, 0)


def test_scores_that_add_and_take_away_are_red_and_blue(tmp_path, signed) -> None:
    options = {"classes": ("ki67",), "predicted": "ki67", "words": NUMBER}
    written = draw_heatmap(tmp_path, "a", signed, **options)
    for kind in ("overlay", "map"):
        picture = pixels(written[kind])
        for color in DIVERGING_COLOR_SCALE[[0, 128, 256]]:
            assert (picture == color).all(axis=2).sum() > 1000
        assert not has_color(picture, COLOR_SCALE[-1])


def test_the_overlay_on_tissue_and_its_tiles_are_diverging(tmp_path, signed, slide) -> None:
    options = {"classes": ("ki67",), "predicted": "ki67", "words": NUMBER, "slide": slide}
    written = draw_heatmap(tmp_path, "a", signed, **options)
    assert has_color(pixels(written["tiles"]), DIVERGING_COLOR_SCALE[-1])
    right = pixels(written["overlay"])[:, -1100:]
    reddish, bluish = (right[..., c].astype(int) - right[..., 2 - c] > 30 for c in (0, 2))
    assert min(reddish.sum(), bluish.sum()) > 10_000


def test_what_is_not_added_up_stays_on_the_usual_scale(tmp_path, scores, signed) -> None:
    unknown = replace(signed, score_class=None)  # such as attention
    for each, words in ((signed, ScoreWords()), (unknown, NUMBER)):
        options = {"classes": ("ki67",), "predicted": "ki67", "words": words}
        picture = pixels(draw_heatmap(tmp_path, "a", each, **options)["map"])
        assert has_color(picture, COLOR_SCALE[-1])
        assert not has_color(picture, DIVERGING_COLOR_SCALE[-1])


def test_scores_that_only_add_have_no_blue(tmp_path, signed) -> None:
    positive = replace(signed, scores=signed.scores + 400)
    options = {"classes": ("ki67",), "predicted": "ki67", "words": NUMBER}
    picture = pixels(draw_heatmap(tmp_path, "a", positive, **options)["map"])
    assert has_color(picture, DIVERGING_COLOR_SCALE[-1])
    left = picture[:, : picture.shape[1] // 2].astype(int)  # without the bar of colors
    assert (left[..., 2] - left[..., 0] <= 60).all()


def test_one_negative_target_makes_all_diverging(scores) -> None:
    by_target = np.stack([scores.scores, -scores.scores], axis=1)
    both = replace(scores, class_scores=by_target)
    for name in ("ki67", "age"):
        shown = select_scores(both, ("ki67", "age"), predicted="ki67", class_name=name)
        assert shown.choose_normalization(words=NUMBER) == "diverging"
        text = shown.make_text("a", "", "score", "diverging", NUMBER)
        assert text.name == f"adds to {name} (red) or lowers {name} (blue)"
        assert text.effects == (f"adds to {name}", f"lowers {name}")


@pytest.mark.parametrize("given", ["raw", "minmax", "rank"])
def test_scores_around_zero_take_no_other_normalization(tmp_path, signed, scores, given) -> None:
    options = {"classes": ("ki67",), "words": NUMBER, "normalization": given}
    with pytest.raises(ConfigError, match=rf"is {given}; expected none, .* a tile adds to ki67"):
        draw_heatmap(tmp_path, "a", signed, **options)
    attention = replace(scores, class_scores=None, score_class=None)
    assert draw_heatmap(tmp_path, "a", attention, **options)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (ScoreWords(), "score for er (predicted)"),
        (ScoreWords.from_task(MultiLabel(("er", "pr"))), "score for er"),
        (ScoreWords.from_task(Regression(("er", "pr"))), "score for er"),
    ],
)
def test_only_a_class_is_predicted(scores, words: ScoreWords, expected: str) -> None:
    both = replace(scores, class_scores=np.stack([scores.scores] * 2, axis=1))
    shown = select_scores(both, ("er", "pr"), predicted="er")
    assert shown.describe("score", "rank", words) == expected


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (MultiLabel(("er", "pr")), "attention, one for all targets"),
        (Classification(("er", "pr")), "attention, one for all classes"),
        (Regression(("er", "pr")), "attention: how much a tile counts, in either direction"),
        (Regression("er"), "attention: how much a tile counts, in either direction"),
    ],
)
def test_attention_is_described_by_the_task(scores, task: Task, expected: str) -> None:
    attention = replace(scores, class_scores=None, score_class=None)
    shown = select_scores(attention, task.score_names, predicted="er")
    assert shown.describe("attention", "rank", ScoreWords.from_task(task)) == expected


def test_a_single_target_needs_no_word_about_classes(scores) -> None:
    attention = replace(scores, class_scores=None)
    assert select_scores(attention, ("ki67",), predicted="ki67").describe() == "score"
    of_classes = select_scores(attention, ("no", "yes"), predicted="no")
    assert of_classes.describe() == "score, one for all classes"


def test_an_overlay_without_the_panel_of_the_slide_is_half_as_wide(scores, slide) -> None:
    text = PictureText("a", "", "score")
    with open_canvas(scores, slide) as canvas:
        both = draw_pictures(scores, canvas, text)["overlay"]
        single = draw_overlay(scores, canvas, text, show_slide=False)
    assert single.width < 0.6 * both.width
    assert single.height == both.height
