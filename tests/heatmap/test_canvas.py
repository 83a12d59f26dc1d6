"""Tiles as pixels, compared with a plain loop and with values by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sacmil.heatmap.canvas import Viewport, fit_viewport, rasterize
from sacmil.heatmap.colors import apply_color_scale
from sacmil.heatmap.pictures import OPACITY, blend_colors
from sacmil.results import InstanceScores

few = settings(deadline=None, max_examples=30, derandomize=True)


def scores_at(coords, patch_size: float) -> InstanceScores:
    coords = np.asarray(coords)
    return InstanceScores(coords, patch_size, np.zeros(len(coords), np.float32))


def test_nine_tiles_make_nine_squares() -> None:
    coords = [(x, y) for y in (0, 100, 200) for x in (0, 100, 200)]
    positions = np.arange(9) / 8
    means, covered = rasterize(scores_at(coords, 100), positions, Viewport(0, 0, 12, 12, 25))
    assert covered.all()
    np.testing.assert_allclose(
        means, np.kron(positions.reshape(3, 3), np.ones((4, 4))), rtol=0, atol=2**-32
    )


def test_the_missing_middle_of_nine_shows_the_slide() -> None:
    coords = [(x, y) for y in (0, 2, 4) for x in (0, 2, 4) if (x, y) != (2, 2)]
    positions = np.linspace(0, 1, 8)
    slide = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    means, covered = rasterize(scores_at(coords, 2), positions, Viewport(0, 0, 6, 6, 1))
    overlay = blend_colors(slide, means, covered)
    assert (overlay[2:4, 2:4] == slide[2:4, 2:4]).all()
    gray = slide[:2, :2] @ [0.2126, 0.7152, 0.0722]
    expected = (1 - OPACITY) * gray[..., None] + OPACITY * apply_color_scale(positions[:1])[
        0
    ].astype(float)
    assert np.abs(overlay[:2, :2] - expected).max() <= 1.5


def test_without_a_slide_colors_are_pure_and_the_rest_is_white() -> None:
    means, covered = rasterize(scores_at([(0, 0)], 2), np.ones(1), Viewport(0, 0, 4, 2, 1))
    picture = blend_colors(None, means, covered)
    assert (picture[:, :2] == apply_color_scale(np.ones(1))[0]).all()
    assert (picture[:, 2:] == 255).all()


def rasterize_by_loop(scores: InstanceScores, positions, view: Viewport):
    total, count = np.zeros((2, view.height, view.width))
    for (x, y), position in zip(scores.coords, positions, strict=True):
        left, top = (int(v) for v in np.rint(view.to_pixels((x, y))))
        end = view.to_pixels((x + scores.patch_size, y + scores.patch_size))
        right, bottom = (int(v) for v in np.rint(end))
        here = np.s_[top : max(bottom, top + 1), left : max(right, left + 1)]
        total[here] += position
        count[here] += 1
    return np.divide(total, count, out=np.zeros_like(total), where=count > 0), count > 0


@few
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300)), min_size=1, max_size=25),
    st.sampled_from([1.0, 16.0, 37.5, 90.0]),
    st.integers(0, 9),
)
def test_a_pixel_is_the_mean_of_its_tiles_with_overlap_gaps_and_off_the_grid(
    coords, patch_size, seed
) -> None:
    scores = scores_at(coords, patch_size)
    positions = np.random.default_rng(seed).random(len(coords))
    view = fit_viewport(scores, longer_side=60)
    means, covered = rasterize(scores, positions, view)
    expected, where = rasterize_by_loop(scores, positions, view)
    assert (covered == where).all()
    np.testing.assert_allclose(means, expected, rtol=0, atol=1e-8)


def test_no_tile_is_too_small_to_be_seen() -> None:
    scores = scores_at([(0, 0), (100_000, 50_000)], 10)
    _, covered = rasterize(scores, np.ones(2), fit_viewport(scores, longer_side=100))
    assert covered.sum() == 2


def test_neighbours_meet_at_any_scale() -> None:
    coords = [(x * 256, 0) for x in range(50)]
    scores = scores_at(coords, 256)
    for side in (53, 120, 333):
        _, covered = rasterize(scores, np.ones(50), fit_viewport(scores, longer_side=side))
        row = covered[covered.any(axis=1)][0]
        assert row[row.argmax() : len(row) - row[::-1].argmax()].all()
